"""Files of weights: GGUF and Hugging Face folders, their layouts and number formats."""
