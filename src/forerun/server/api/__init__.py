"""Routes of the server: a file for each API that clients know, OpenAI's, Anthropic's, Ollama's, llama-server's."""
