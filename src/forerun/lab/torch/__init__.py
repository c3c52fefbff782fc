"""The decoder in torch, fp32: other devices than CPUs, and the oracle that the native kernels are tested against."""
