"""What was measured: one round of one group of prompts, answered by every system, is one result of a `lab.store`.

The store's file is the whole memory of a benchmark: an interrupted run goes on from it, and every table and plot
comes from it. Nothing is averaged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.engine.stats import SpecStats
from forerun.lab import store

Provenance = store.Result
ADDED = ("token_ids", "ttft_s", "decode_tokens", "prefill_s", "decode_s", "draft_s", "verify_s")
"""Fields of a measurement that add up, step by step."""
MOST = ("peak_rss_mb", "most_blocks")
"""Fields of which the largest counts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Counts and seconds of one system; lists hold one entry a prompt and step of its conversation.

    `decode_s` runs from the moment when all prompts of a step have their first token; `decode_tokens` are those after
    it. `quant` is what a peer made of the weights, None: as in the file. `error` says why there is nothing to count:
    then everything else is empty.
    """

    system: str
    peer: str | None = None
    quant: str | None = None
    token_ids: list[list[int]] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    peak_rss_mb: float = 0.0
    most_blocks: int = 0
    """Blocks of keys and values that were in use at once, in any of its steps."""
    stats: SpecStats = field(default_factory=SpecStats)
    error: str | None = None

    def total(self, parts: Sequence[Measurement]) -> Measurement:
        """Add up this system's measurements of several steps."""
        added = {name: reduce(add, (getattr(part, name) for part in parts)) for name in ADDED}
        most = {name: max(getattr(part, name) for part in parts) for name in MOST}
        stats = SpecStats.total(part.stats for part in parts)
        return replace(self, **added, **most, stats=stats)


@dataclass(frozen=True, slots=True)
class Round:
    """All systems' measurements of one group, taken one after the other: systems are only compared within a round."""

    group: str
    category: str
    round: int
    num_prompts: int
    measurements: Sequence[Measurement]

    @property
    def key(self) -> str:
        """Its name in the store."""
        return f"{self.group}/{self.round}"

    def of(self, system: str) -> Measurement | None:
        """Return a system's measurement; None if it could not run."""
        return next((m for m in self.measurements if m.system == system and not m.error), None)

    @classmethod
    def from_json(cls, result: store.Result) -> Round:
        """Read what `asdict` and JSON made of it. Raises TypeError, KeyError."""
        given: dict = {**result}
        rows = given.pop("measurements")
        return cls(
            **given,
            measurements=[
                Measurement(**row | {"stats": SpecStats(**row["stats"])}) for row in rows
            ],
        )


def read(path: Path) -> tuple[Provenance, list[Round]]:
    """Read the provenance and the rounds of a file. Raises ConfigError."""
    origin, results = store.read(path)
    try:
        return origin, [Round.from_json(result) for result in results.values()]
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{path} holds no measurements of forerun bench: {error}") from error
