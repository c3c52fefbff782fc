"""vLLM's `vllm.inputs`."""

from forerun.compat.absent import of_module
from forerun.inputs import TextPrompt, TokensPrompt

__all__ = ["TextPrompt", "TokensPrompt"]

__getattr__ = of_module(__name__, __all__, {"EmbedsPrompt": "prompts are text or token ids"})
