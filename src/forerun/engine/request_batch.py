"""Prompts that one caller runs together, to the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from forerun.core.errors import RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.engine.loop import Request
from forerun.text.prompt import Encoded

Submit = Callable[[Encoded, SamplingParams], Request]
MANY = 16
"""Prompts from which on progress is shown in a terminal, by default."""


def run(
    submit: Submit,
    prompts: Sequence[Encoded],
    sampling_params: SamplingParams | Sequence[SamplingParams],
    *,
    use_tqdm: bool | None,
) -> list[Request]:
    """Run the prompts together to the end; if one cannot be run, none is."""
    params = _one_each(sampling_params, len(prompts))
    requests: list[Request] = []
    try:
        for prompt, own in zip(prompts, params, strict=True):
            requests.append(submit(prompt, own))
        _wait(requests, use_tqdm)
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


def _wait(requests: Sequence[Request], is_shown: bool | None) -> None:
    """Wait for all, and show on stderr how many have ended: one line, which is written over."""
    total, start_s = len(requests), time.monotonic()
    is_shown = total >= MANY and _is_watched() if is_shown is None else is_shown
    try:
        for count, request in enumerate(requests, 1):
            request.wait()
            if is_shown:
                rate = count / max(time.monotonic() - start_s, 1e-9)
                sys.stderr.write(f"\ranswered {count} of {total} ({rate:.1f}/s)  ")
                sys.stderr.flush()
    finally:
        if is_shown:
            sys.stderr.write("\n")


def _is_watched() -> bool:
    """Tell a terminal and a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
