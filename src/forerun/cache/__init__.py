"""KV caches: one protocol, the dense one as the oracle."""
