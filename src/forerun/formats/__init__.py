"""Model files: GGUF and Hugging Face folders, read as stored, and the tokenizers inside them."""
