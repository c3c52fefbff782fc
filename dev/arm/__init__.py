"""The kernels of AArch64, compiled and run under emulation on another processor."""
