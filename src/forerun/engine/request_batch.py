"""Prompts that one caller runs together, to the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from forerun.core.errors import RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.engine.loop import Request
from forerun.text.prompt import Encoded

Submit = Callable[[Encoded, SamplingParams], Request]


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
        with _bar(len(requests), use_tqdm) as advance:
            for request in requests:
                request.wait()
                advance()
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


MANY = 16
"""Prompts from which on progress is shown in a terminal, by default."""
_EACH_S = 0.2


@contextmanager
def _bar(total: int, is_shown: bool | None) -> Iterator[Callable[[], None]]:
    """Show progress on stderr: one line that is written over, of which a saved notebook has the last state."""
    is_shown = total >= MANY and _is_watched() if is_shown is None else is_shown
    count, start_s, shown_s = 0, time.monotonic(), 0.0

    def advance() -> None:
        nonlocal count, shown_s
        count += 1
        now_s = time.monotonic()
        if is_shown and (count == total or now_s - shown_s >= _EACH_S):
            shown_s, rate = now_s, count / max(now_s - start_s, 1e-9)
            left = f", {(total - count) / rate:.0f} s left" if count < total else ""
            sys.stderr.write(f"\ranswered {count} of {total} ({rate:.1f}/s{left})  ")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if is_shown and count:
            sys.stderr.write("\n")


def _is_watched() -> bool:
    """Tell a terminal and a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
