"""What a request asks for, where vLLM has it."""

from forerun.core.params import RequestOutputKind, SamplingParams
from forerun.core.structured import StructuredOutputsParams

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
