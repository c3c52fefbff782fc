"""KV caches: one base class, the dense one as the oracle."""
