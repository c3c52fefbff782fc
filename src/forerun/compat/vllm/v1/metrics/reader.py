"""vLLM's `vllm.v1.metrics.reader`."""

from forerun.compat.absent import of_module
from forerun.engine.metrics import Counter, Gauge, Metric, Vector

__all__ = ["Counter", "Gauge", "Metric", "Vector"]

__getattr__ = of_module(__name__, __all__, {})
