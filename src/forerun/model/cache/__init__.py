"""KV caches in blocks that sequences share: for the native kernels and for torch, with states of recurrent layers."""
