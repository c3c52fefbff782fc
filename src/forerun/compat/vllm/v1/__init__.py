"""vLLM's `vllm.v1`."""
