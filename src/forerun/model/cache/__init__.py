"""KV caches in blocks that sequences share, for the native kernels, with states of recurrent layers."""
