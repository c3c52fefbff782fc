"""Passes of the target side by side: ours and the peers', the same rows over the same context, in turns.

A case is a shape of pass: rows over a context (decoding and verifying), many rows over nothing (reading a prompt), one
row of each of several sequences (a batch). Speeds here drift, so every round asks every contender, and what counts are
the ratios within a round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from forerun.bench.kernels import fill
from forerun.bench.peers._worker import burst
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.nn.model import Model

DEFAULT_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Case:
    """`num_seqs` sequences, each with `rows` tokens to compute above `context` tokens in its cache."""

    num_seqs: int
    rows: int
    context: int

    @classmethod
    def of(cls, text: str) -> Case:
        """Read `[SEQUENCESx]ROWS[@CONTEXT]`: `8`, `512@0`, `1@4096`, `32x1@128`. Raises ConfigError."""
        found = re.fullmatch(r"(?:(\d+)x)?(\d+)(?:@(\d+))?", text)
        num_seqs, rows, context = (
            (int(found[1] or 1), int(found[2]), int(found[3] or DEFAULT_CONTEXT))
            if found
            else (0, 0, 0)
        )
        if not num_seqs or not rows:
            raise ConfigError(f"a case is [SEQUENCESx]ROWS[@CONTEXT], as in 8x1@128, got '{text}'")
        return cls(num_seqs, rows, context)

    def __str__(self) -> str:
        seqs = f"{self.num_seqs}x" if self.num_seqs > 1 else ""
        return f"{seqs}{self.rows}@{self.context}"

    @property
    def max_len(self) -> int:
        """Cache rows a sequence needs."""
        return self.context + self.rows


class Passes(Protocol):
    """Whoever can run cases."""

    def seconds(self, case: Case) -> float:
        """Seconds of one pass now: the median of a short burst."""
        ...


class OwnPasses:
    """The native or torch model of this process: body and head of every row."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ready: dict[Case, Callable[[], None]] = {}

    def seconds(self, case: Case) -> float:
        """Seconds of one pass. The first call fills the case's context."""
        if case not in self._ready:
            self._ready[case] = self._prepare(case)
        return burst(self._ready[case])

    def _prepare(self, case: Case) -> Callable[[], None]:
        cache = self._model.new_cache(case.num_seqs, case.max_len)
        for slot in range(case.num_seqs if case.context else 0):
            fill(self._model, cache, slot, case.context)
        new = tuple(range(1, case.rows + 1))
        batch = Batch(tuple(Segment(slot, case.context, new) for slot in range(case.num_seqs)))
        is_prompt = case.context == 0

        def run() -> None:
            hidden = self._model.forward(batch, cache).last
            self._model.head(hidden[-1:] if is_prompt else hidden)  # a prompt needs its last row's

        return run


@dataclass(slots=True)
class Comparison:
    """Every round's seconds of every contender in every case."""

    rounds: dict[tuple[Case, str], list[float]] = field(default_factory=dict)

    def add(self, case: Case, name: str, seconds: float) -> None:
        """Record one turn."""
        self.rounds.setdefault((case, name), []).append(seconds)

    def rows(self, first: str) -> list[dict[str, object]]:
        """One JSON row a case and contender; `times_ours` is its time over `first`'s, paired by round."""
        found: list[dict[str, object]] = []
        for (case, name), seconds in self.rounds.items():
            ours = self.rounds[case, first]
            ratios = [s / o for s, o in zip(seconds, ours, strict=False)]
            found.append(
                {
                    "case": str(case),
                    "contender": name,
                    "ms": round(median(seconds) * 1e3, 4),
                    "ms_best": round(min(seconds) * 1e3, 4),
                    "tok_s": round(case.num_seqs * case.rows / median(seconds), 1),
                    "times_ours": round(median(ratios), 4),
                    "lo": round(min(ratios), 4),
                    "hi": round(max(ratios), 4),
                }
            )
        return found


def compare(
    contenders: Mapping[str, Passes], cases: Sequence[Case], rounds: int
) -> Iterator[Comparison]:
    """Yield what is known after each round; every contender takes its turn at every case. Raises ConfigError."""
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    for case in cases:
        for contender in contenders.values():
            contender.seconds(case)  # warm up: contexts are filled, threads awake
    comparison = Comparison()
    for _ in range(rounds):
        for case in cases:
            for name, contender in contenders.items():
                comparison.add(case, name, contender.seconds(case))
        yield comparison
