"""vLLM's `vllm.sampling_params`."""

from forerun.compat.absent import of_module
from forerun.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]

__getattr__ = of_module(
    __name__,
    __all__,
    {
        "GuidedDecodingParams": "it is StructuredOutputsParams, given as structured_outputs",
        "BeamSearchParams": "there is no beam search: SamplingParams(n=...) gives several answers",
    },
)
