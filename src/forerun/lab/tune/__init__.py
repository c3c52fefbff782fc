"""Autotune: which drafter and options are fastest for one model on one machine, and the file that remembers it."""
