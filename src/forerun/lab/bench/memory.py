"""What speculation loses when memory is taken from it: speculative tok/s kept against generation memory cut.

Generation memory is everything beyond the model's weights, tokenizer and program (`MemoryPlan.generation`): keys and
values, the drafter's weights and what it keeps, step buffers and logits. Drafters are measured with all of it and with
parts of what they use of it, in turns on the same conversations; what is kept is counted against the fastest of them
with all of it.

Source of the question: SpecMemo (arXiv 2506.01986), which keeps 96 % of the speculative speed with 65 % less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from forerun.core import sizes
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.engine.memory import MemoryPlan
from forerun.engine.planner import Planner
from forerun.lab.bench import summary, workload
from forerun.lab.bench.measurement import Provenance, Round
from forerun.lab.bench.run import PLAIN, Bench, EngineSystem
from forerun.lab.bench.summary import ALL, Row
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.output import Column, show_table
from forerun.lab.store import Store
from forerun.llm import LLM


@dataclass(frozen=True, slots=True)
class Point:
    """A drafter with part of its generation memory; `plan` is what is allocated, None where nothing works."""

    drafter: str
    cut: float
    """Percent of the used generation memory that is taken away."""
    budget: int
    plan: MemoryPlan | None

    @property
    def name(self) -> str:
        """Of the system that is measured."""
        return f"{self.drafter} -{self.cut:g}%"


def percents(cuts: str) -> list[float]:
    """Read the cuts, ascending and 0 among them. Raises ConfigError."""
    try:
        values = sorted({0.0, *(float(cut) for cut in cuts.split(","))})
    except ValueError:
        values = [-1.0]
    if not 0 <= values[0] <= values[-1] < 100:
        raise ConfigError(f"cuts must be percents from 0 to 99, such as 0,50,65, got {cuts!r}")
    return values


def budget_of(plan: MemoryPlan, used: int, cut: float) -> int:
    """Return the budget, in bytes, with `cut` percent less generation memory than is `used` of the whole plan."""
    return plan.total - plan.generation + round(used * (1 - cut / 100)) if cut else plan.total


def used_nbytes(point: Point, rounds: Sequence[Round]) -> int:
    """Return the generation memory, in bytes, that a point used at most: its plan without blocks that stayed free."""
    assert point.plan is not None
    measured = filter(None, (each.of(point.name) for each in rounds))
    unused = point.plan.num_blocks - max(each.most_blocks for each in measured)
    return point.plan.generation - unused * point.plan.block_nbytes


def rows(points: Sequence[Point], rounds: Sequence[Round], origin: Provenance) -> list[Row]:
    """Return a row a point: its speed, and as a share of the fastest with all memory, with its interval."""
    plain = summary.totals(rounds, origin)
    fastest = max((p.name for p in points if not p.cut), key=lambda name: plain[name]["tok_s"])
    shares = summary.totals(rounds, origin, fastest)
    table: list[Row] = []
    for point in points:
        row: Row = {"drafter": point.drafter, "cut": point.cut, "budget_bytes": point.budget}
        if point.plan is None:
            table.append({**row, "error": "too small for one sequence"})
            continue
        totals, share = plain[point.name], shares[point.name]
        row |= {
            "generation_bytes": point.plan.generation,
            "total_bytes": point.plan.total,
            "used_bytes": used_nbytes(point, rounds),
            "blocks": point.plan.num_blocks,
            "with": point.plan.drafter.name,
            "kept": share["speedup"],
            "kept_lo": None if point.name == fastest else share["speedup_lo"],
            "kept_hi": None if point.name == fastest else share["speedup_hi"],
        }
        names = ("tok_s", "speedup", "tau", "acceptance_rate", "drafted", "accepted", "rejected")
        table.append(
            row | {name: totals[name] for name in (*names, "ttft_ms", "prompts", "identical")}
        )
    return table


def whole(llm: LLM, drafter: str) -> Point:
    """Return the drafter with all its memory."""
    plan = _planner(llm, drafter).plan()
    return Point(drafter, 0.0, plan.total, plan)


def points(llm: LLM, whole: Point, used: int, cuts: Sequence[float]) -> list[Point]:
    """Return a drafter at every cut of what is `used` of the whole memory, in bytes; the whole first."""
    assert whole.plan is not None
    planner = _planner(llm, whole.drafter)
    budgets = [(cut, budget_of(whole.plan, used, cut)) for cut in cuts]
    return [Point(whole.drafter, cut, budget, planner.fitting(budget)) for cut, budget in budgets]


def _planner(llm: LLM, drafter: str) -> Planner:
    return Planner.of(replace(llm.config, drafter=drafter), llm.device)


def groups(prompts: Sequence[TaskPrompt], together: int) -> list[PromptGroup]:
    """Groups of at most `together` conversations, of any category."""
    return workload.groups([replace(prompt, category=ALL) for prompt in prompts], together)


def measure(
    llm: LLM, points: Sequence[Point], groups: Sequence[PromptGroup], rounds: int,
    params: SamplingParams, what: str, origin: Provenance,
) -> list[Round]:  # fmt: skip
    """Measure all points after plain decoding, group by group."""

    def system(point: Point) -> EngineSystem:
        engine = partial(llm.with_drafter, point.drafter, memory_budget=point.budget)
        return EngineSystem(point.name, lambda: engine().engine, llm.tokenizer, params)

    systems = [EngineSystem.of(llm, PLAIN, params), *(system(p) for p in points if p.plan)]
    bench = Bench(groups, systems, llm.encode, Store(origin), num_rounds=rounds)
    bench.run(f"measuring, {what} together")
    return bench.rounds


def show(rows: Sequence[Row]) -> None:
    """Print a line a point."""
    columns: dict[str, Column] = {
        "drafter": "drafter",
        "cut": lambda row: f"{row['cut']:g}%",
        "runs with": lambda row: row.get("error") or row["with"],
        "generation\nmemory": lambda row: sizes.format_size(row.get("generation_bytes", 0)),
        "of it used": lambda row: sizes.format_size(row.get("used_bytes", 0)),
        "blocks": ("blocks", 0),
        "tok/s": ("tok_s", 1),
        "kept": ("kept", ".0%"),
        "range": lambda row: (
            f"{row['kept_lo']:.2f}-{row['kept_hi']:.2f}" if row.get("kept_lo") else ""
        ),
        "tau": ("tau", 2),
    }
    show_table(rows, columns, num_left=3)
