"""Measuring: what is asked (`workload`), who answers and how it is timed (`run`, `peers`), what came of it
(`measurement`), figures (`summary`) and what people read (`report`, `plots`). `kernels` times single passes.
"""
