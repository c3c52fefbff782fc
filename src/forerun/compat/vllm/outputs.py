"""vLLM's `vllm.outputs`: what `forerun.outputs` has."""

from forerun.compat.absent import of_module
from forerun.outputs import *  # noqa: F403
from forerun.outputs import __all__

__getattr__ = of_module(__name__, __all__, {})
