"""Measure what a table would bring: tokens a pass of answers that were not counted, by its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forerun.drafters.base.ngram.counting import Text, count_contexts, cut
from forerun.model.kernels import native

if TYPE_CHECKING:
    from forerun._native import FileTable

MEASURED_NODES, MIN_CHANCE = 5, 0.02
"""The trees that `tokens_a_pass` counts with."""
SIZES_MB = (0.5, 1.0, 2.0, 4.0, 8.0)
HELD_OUT = 20
"""The answers to one of so many prompts are not counted, to measure on."""


def tokens_a_pass(texts: Iterable[Text], file: FileTable | None, order: int) -> float:
    """Count the tokens a pass (tau) that trees of `MEASURED_NODES` from the table alone bring on these answers."""
    from forerun import _native

    nothing = _native.LiveTable(order, 0)
    num_tokens = num_passes = 0
    for prompt, answer in texts:
        tokens, position = [*prompt, *answer], len(prompt)
        while position < len(tokens):
            tail = tokens[max(0, position - order) : position]
            tree = _native.grow_tree(tail, file, nothing, (), MEASURED_NODES, MIN_CHANCE)
            below = {
                (parent, token): i for i, (token, parent) in enumerate(zip(*tree[:2], strict=True))
            }
            node: int | None = -1
            num_passes += 1
            while position < len(tokens) and node is not None:
                node = below.get((node, tokens[position]))
                num_tokens, position = num_tokens + 1, position + 1
    return num_tokens / num_passes if num_passes else 1.0


def measure(
    texts: Sequence[Text], order: int, token_nbytes: int, most_mb: float, head_nbytes: int
) -> list[dict[str, float]]:
    """Measure tables up to a size, in files with so large a head, on answers that were not counted.

    Returns size in MB, contexts and tau of each.
    """
    native.require()
    from forerun import _native

    is_held_out = [not hash(prompt) % HELD_OUT for prompt, _ in texts]
    if all(is_held_out) or not any(is_held_out):  # few prompts
        is_held_out = [not i % HELD_OUT for i in range(len(texts))]
    held_out = [text for text, is_out in zip(texts, is_held_out, strict=True) if is_out]
    others = [text for text, is_out in zip(texts, is_held_out, strict=True) if not is_out]
    if not others:
        return [{"mb": 0.0, "contexts": 0, "tau": 1.0}]
    counted, figures, known = count_contexts(others, order), list[dict[str, float]](), 0
    for mb in sorted({*(mb for mb in SIZES_MB if mb < most_mb), most_mb}):
        made = cut(counted, round(mb * 1e6) - head_nbytes, token_nbytes)
        if made.num_contexts == known:
            break
        known = made.num_contexts
        file = _native.FileTable(made.offsets, made.data, token_nbytes)
        tau = tokens_a_pass(held_out, file, order)
        figures.append({"mb": made.nbytes / 1e6, "contexts": known, "tau": tau})
    return figures
