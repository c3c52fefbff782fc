"""Prompts that one caller runs together, to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forerun.core.errors import RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.engine.request import RequestHandle
from forerun.text.prompt import Encoded

Submit = Callable[[Encoded, SamplingParams], RequestHandle]


def run(
    submit: Submit,
    prompts: Sequence[Encoded],
    sampling_params: SamplingParams | Sequence[SamplingParams],
    *,
    use_tqdm: bool,
) -> list[RequestHandle]:
    """Run the prompts together to the end; if one cannot be run, none is."""
    params = _one_each(sampling_params, len(prompts))
    requests: list[RequestHandle] = []
    try:
        for prompt, own in zip(prompts, params, strict=True):
            requests.append(submit(prompt, own))
        for request in _watched(requests) if use_tqdm else requests:
            request.wait()
    finally:
        for request in requests:
            request.cancel()
    return requests


def _one_each(
    sampling_params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> Sequence[SamplingParams]:
    """Return the parameters of every prompt. Raises RequestError for another number of them, or something else."""
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    if not isinstance(sampling_params, Sequence) or not all(
        isinstance(params, SamplingParams) for params in sampling_params
    ):
        raise RequestError(
            "sampling_params must be a SamplingParams or a list of them, "
            f"got {short_repr(sampling_params)}"
        )
    if len(sampling_params) != num_prompts:
        raise RequestError(f"{num_prompts} prompts but {len(sampling_params)} sampling params")
    return sampling_params


def _watched(requests: Sequence[RequestHandle]) -> Iterable[RequestHandle]:
    """Return the requests, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import track

    return track(requests, "answering", console=Console(stderr=True))
