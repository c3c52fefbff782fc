"""Read what vLLM, llama.cpp, Hugging Face and OpenAI call our options, where users type them."""
