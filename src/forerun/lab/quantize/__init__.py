"""Quantizing a model to a folder: AWQ, GPTQ, flattening, and the jobs that run them."""
