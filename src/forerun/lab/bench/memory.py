"""What speculation loses when memory is taken from it: speculative tok/s kept against generation memory cut.

Generation memory is everything beyond weights, tokenizer and program (`MemoryPlan.generation`): keys and values, what
the drafter keeps, step buffers and logits. A drafter is measured with all of it and with parts of it, side by side on
the same conversations; besides, what a batch brings over one sequence at a time within one budget.

Source of the question: SpecMemo (arXiv 2506.01986), which keeps 96 % of the speculative speed with 65 % less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.engine.memory import MemoryPlan
from forerun.lab.bench import summary
from forerun.lab.bench.measurement import Measurement, Provenance, Round
from forerun.lab.bench.run import PLAIN
from forerun.lab.bench.summary import ALL, Row

REFERENCE = (65.0, 96.0)
"""SpecMemo's point: percent of generation memory cut, percent of speculative speed kept."""


@dataclass(frozen=True, slots=True)
class Point:
    """A drafter with part of its generation memory; `plan` is what is allocated, None where nothing works."""

    drafter: str
    cut: float
    """Percent of the generation memory that is taken away."""
    budget: int
    plan: MemoryPlan | None

    @property
    def name(self) -> str:
        """Of the system that is measured."""
        return f"{self.drafter} -{self.cut:g}%"


def budget_of(whole: MemoryPlan, cut: float) -> int:
    """The budget that leaves so many percent less than the whole generation memory."""
    return whole.total - round(whole.generation * cut / 100)


def rows(points: Sequence[Point], rounds: Sequence[Round], origin: Provenance) -> list[Row]:
    """A row a point: its speed, and the share of the speed with all memory that is kept, with its interval."""
    plain = {row["drafter"]: row for row in _of_all(rounds, origin)}
    found: list[Row] = []
    for point in points:
        row: Row = {"drafter": point.drafter, "cut": point.cut, "budget_bytes": point.budget}
        if point.plan is None:
            found.append({**row, "error": "too small for one sequence"})
            continue
        whole = next(p.name for p in points if p.drafter == point.drafter)
        kept = {r["drafter"]: r for r in _of_all(_against(rounds, whole), origin)}
        mine, share = plain[point.name], kept.get(point.name)
        row |= {
            "generation_bytes": point.plan.generation,
            "total_bytes": point.plan.total,
            "blocks": point.plan.num_blocks,
            "with": point.plan.drafter.name,
            "kept": 1.0 if share is None else share["speedup"],
            "kept_lo": None if share is None else share["speedup_lo"],
            "kept_hi": None if share is None else share["speedup_hi"],
        }
        names = ("tok_s", "speedup", "tau", "acceptance_rate", "drafted", "accepted", "rejected")
        found.append(
            row | {name: mine[name] for name in (*names, "ttft_ms", "prompts", "identical")}
        )
    return found


def times(alone: Sequence[Round], together: Sequence[Round], origin: Provenance) -> list[Row]:
    """A row a system: its tok/s one sequence at a time and many, within one budget."""
    one, many = ({r["drafter"]: r for r in _of_all(each, origin)} for each in (alone, together))
    return [
        {
            "drafter": name,
            "tok_s_alone": one[name]["tok_s"],
            "tok_s_together": many[name]["tok_s"],
            "times": round(many[name]["tok_s"] / one[name]["tok_s"], 3),
            "identical": many[name]["identical"],
            "prompts": many[name]["prompts"],
        }
        for name in one
        if name in many
    ]


def _of_all(rounds: Sequence[Round], origin: Provenance) -> list[Row]:
    return [row for row in summary.rows(rounds, origin) if row["category"] == ALL]


def _against(rounds: Sequence[Round], whole: str) -> list[Round]:
    """The rounds with another system in the place of plain decoding."""

    def named(measurement: Measurement) -> Measurement:
        return replace(measurement, system=PLAIN) if measurement.system == whole else measurement

    return [
        replace(each, measurements=[named(m) for m in each.measurements if m.system != PLAIN])
        for each in rounds
    ]
