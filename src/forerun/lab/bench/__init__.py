"""Measuring speed: `workload` asks, `run` and `peers` answer, `summary` and `report` tell; `kernels` times passes."""
