"""The decoder as Triton kernels, whose tokens are the CPU's, bit for bit; the extra `gpu` brings what it needs.

Only `model/backends/triton.py` imports it.
"""
