"""One decoder for all families: configuration, backends, cache and reference kernels."""
