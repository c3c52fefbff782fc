"""How far a draft's head is cut: the tokens its target says most, and what lists of each size bring.

Source: VocabTrim (arXiv 2506.22694), which counts what the target says, keeps the commonest, and reports MBSU: the
tokens of a pass over what its drafting costs, tau / (c gamma + 1), where c is what a step of the draft reads of a pass.

V vocabulary, n tokens of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from forerun.lab.bench.run import Answer
from forerun.model.config import ModelConfig, flops_per_token

SIZES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Lists that are tried, against the whole head."""
ROUNDS = 3
"""Times that every prompt is answered with every list; the machine is never quite still."""

Counts = NDArray[np.int64]


def count(texts: Iterable[Sequence[int]], vocab_size: int) -> Counts:
    """How often each token comes (V,). Ids beyond the vocabulary are left out."""
    counts = np.zeros(vocab_size, np.int64)
    for text in texts:
        ids = np.asarray(text, np.int64)
        counts += np.bincount(ids[ids < vocab_size], minlength=vocab_size)
    return counts


def ranked(counts: Counts) -> list[int]:
    """The commonest first; of equal ones the lower id, which was a frequent token where the vocabulary was made."""
    ids: list[int] = np.argsort(-counts, kind="stable").tolist()
    return ids


def coverage(counts: Counts, tokens: Tensor | None) -> float:
    """Share of what was counted that a list has."""
    if tokens is None:
        return 1.0
    return float(counts[tokens.numpy()].sum() / max(1, counts.sum()))


def cost(draft: ModelConfig, target: ModelConfig, size: int | None) -> float:
    """Weights a step of the draft reads, its head cut to `size` tokens, as a share of a pass of the target."""
    saved = 0 if size is None else 2 * draft.hidden_size * (draft.vocab_size - size)
    return (flops_per_token(draft) - saved) / flops_per_token(target)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a list brings; `size` None is the whole head, against which `gain` is a median over the prompts."""

    size: int | None
    coverage: float
    tau: float
    mbsu: float
    tok_s: float
    gain: float
    draft_ms: float
    """Median of the time of one drafted token."""


@dataclass(slots=True)
class TrimMeasured:
    """One list's answers so far: of each prompt tokens a second, tokens a pass, and milliseconds a drafted token."""

    ask: Callable[[Sequence[Sequence[int]]], Answer]
    size: int | None
    coverage: float
    speeds: list[float] = field(default_factory=list)
    taus: list[float] = field(default_factory=list)
    draft_ms: list[float] = field(default_factory=list)

    def figures(self, whole: TrimMeasured, cost: float, num_draft: int) -> Figures:
        """Against the whole head, answered beside it."""
        tau = fmean(self.taus)
        gain = median(a / b for a, b in zip(self.speeds, whole.speeds, strict=True))
        return Figures(
            self.size,
            self.coverage,
            tau,
            tau / (cost * num_draft + 1),
            median(self.speeds),
            gain,
            median(self.draft_ms),
        )


def answer(measured: Sequence[TrimMeasured], prompts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Answer each prompt with each list, in turn and another first each time; yields how many are done."""
    done = 0
    for number, prompt in enumerate([*prompts] * ROUNDS):
        shift = number % len(measured)
        for each in [*measured[shift:], *measured[:shift]]:
            found = each.ask([prompt])
            each.speeds.append(found.decode_tokens / max(found.decode_s, 1e-9))
            each.taus.append(found.stats.tau or 1.0)
            each.draft_ms.append(1000 * found.draft_s / max(1, found.stats.drafted))
            done += 1
            yield done
