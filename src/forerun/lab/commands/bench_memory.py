"""`forerun bench memory`: what is kept of the speed when generation memory is cut, and batches in one budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt
    from forerun.lab.bench.measurement import Provenance, Round
    from forerun.lab.bench.memory import Point
    from forerun.lab.bench.run import EngineSystem
    from forerun.lab.bench.summary import Row
    from forerun.llm import LLM

SPECIFICATION = "suffix,recycling,recycling:num_draft=15"


@opt.engine(
    without=(*opt.DRAFTER, "max_num_seqs", "memory_budget"), drafter="none", max_model_len=2048
)
@opt.sampling("max_tokens", "seed", max_tokens=256, seed=0)
def command(
    config: EngineConfig,
    params: SamplingParams,
    drafters: str = typer.Option(
        SPECIFICATION, "-d", "--drafters", help="NAME[:option=value,...],NAME,..."
    ),
    cuts: str = typer.Option(
        "0,25,50,65,80", help="Percent of the generation memory to take away."
    ),
    task: Path | None = typer.Option(
        None, help="A .jsonl file of conversations; default: builtin prompts."
    ),
    limit: int | None = typer.Option(None, help="So many of them, evenly over the categories."),
    together: int = typer.Option(4, help="Conversations that are decoded together."),
    batch: int = typer.Option(10, help="The batch that is compared with one at a time; 1: none."),
    rounds: int = typer.Option(1, help="How often all is measured."),
    out: Path | None = typer.Option(None, help="JSON of the results; a plot is drawn beside it."),
    plots: bool = typer.Option(True, "--plots/--no-plots", help="Draw PNG and SVG."),
    as_json: opt.Json = False,
) -> None:
    """Measure drafters with all their generation memory and with less of it, in turns on the same conversations.

    Generation memory is what is not weights, tokenizer or program. Exits 1 if a greedy token differs.
    """
    from forerun.cli import console
    from forerun.hub.prompt_sets import BUILTIN, read
    from forerun.lab.bench import memory, workload

    for name, number in (("together", together), ("batch", batch), ("rounds", rounds)):
        opt.check_least(name, number, 1)
    percents = _percents(cuts)
    prompts = workload.choose(read(str(task) if task else BUILTIN), limit)
    llm = opt.load(config, max_num_seqs=together)
    points = [point for name in _names(drafters) for point in _points(llm, name, percents)]
    systems = [_system(llm, point, params) for point in points if point.plan is not None]
    origin = opt.origin(
        config, llm, task=task.stem if task else BUILTIN, max_tokens=params.max_tokens,
        temperature=0.0, together=together, batch=batch, seed=params.seed,
        max_model_len=llm.max_len,
    )  # fmt: skip
    measured = _measure(llm, systems, prompts, together, rounds, params, origin)
    document: dict[str, object] = {
        "provenance": origin,
        "rows": memory.rows(points, measured, origin),
    }
    if batch > 1:
        found = _batches(llm, _names(drafters), prompts, batch, params, origin)
        document["batch"] = found
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if plots:
            from forerun.lab.bench.plots import draw_memory

            title = str(origin.get("model"))
            draw_memory(document["rows"], out.parent, out.stem, title=title)  # type: ignore[arg-type]
    if as_json:
        console.print_json(document)
    else:
        _print(document["rows"], document.get("batch", []))  # type: ignore[arg-type]
    rows: list[Row] = [*document["rows"], *document.get("batch", [])]  # type: ignore[misc]
    if any(row.get("identical") not in (None, row.get("prompts")) for row in rows):
        console.stderr().print("a budget or a drafter changed tokens", style="bold red")
        raise typer.Exit(1)


def _names(drafters: str) -> list[str]:
    from forerun.drafting.parse import split_list
    from forerun.drafting.spec import DrafterSpec

    return [DrafterSpec.of(name).text() for name in split_list(drafters)]


def _percents(cuts: str) -> list[float]:
    from forerun.core.errors import ConfigError

    try:
        found = sorted({0.0, *(float(cut) for cut in cuts.split(","))})
    except ValueError:
        found = [-1.0]
    if not 0 <= found[0] <= found[-1] < 100:
        raise ConfigError(f"cuts must be percents from 0 to 99, such as 0,50,65, got {cuts!r}")
    return found


def _points(llm: LLM, drafter: str, cuts: Sequence[float]) -> list[Point]:
    """The drafter at every cut, the whole memory first."""
    from forerun.engine.planner import Planner
    from forerun.lab.bench.memory import Point, budget_of

    config = replace(llm.config, drafter=drafter)
    planner = Planner.of(config, llm.device)
    whole = planner.plan()
    budgets = [(cut, budget_of(whole, cut)) for cut in cuts]
    return [Point(drafter, cut, budget, planner.fitting(budget)) for cut, budget in budgets]


def _system(llm: LLM, point: Point, params: SamplingParams) -> EngineSystem:
    from forerun.lab.bench.run import EngineSystem

    return EngineSystem(
        point.name,
        lambda: llm.within(point.budget, point.drafter).engine,
        llm.tokenizer,
        params,
    )


def _measure(
    llm: LLM, systems: Sequence[EngineSystem], prompts: Sequence[TaskPrompt], together: int,
    rounds: int, params: SamplingParams, origin: Provenance,
) -> list[Round]:  # fmt: skip
    """All systems after plain decoding, group by group."""
    from forerun.cli import console
    from forerun.lab.bench import workload
    from forerun.lab.bench.run import PLAIN, Bench, EngineSystem
    from forerun.lab.store import Store

    plain = EngineSystem(PLAIN, lambda: llm.with_drafter(PLAIN).engine, llm.tokenizer, params)
    groups = workload.groups(prompts, together)
    bench = Bench(groups, [plain, *systems], llm.encode, Store(origin, None), num_rounds=rounds)
    for _ in console.track(bench.steps(), f"measuring, {together} together", bench.num_steps):
        pass
    for system in systems:
        system.close()
    return bench.rounds


def _batches(
    llm: LLM, drafters: Sequence[str], prompts: Sequence[TaskPrompt], batch: int,
    params: SamplingParams, origin: Provenance,
) -> list[Row]:  # fmt: skip
    """Each system one conversation at a time and many, within a budget: the many's generation memory less 65 %."""
    from forerun.engine.planner import Planner
    from forerun.lab.bench import memory
    from forerun.lab.bench.run import EngineSystem

    config = replace(llm.config, max_num_seqs=batch, drafter=drafters[0])
    budget = memory.budget_of(Planner.of(config, llm.device).plan(), 65)
    many = llm.within(budget, "none", max_num_seqs=batch)
    wide = [replace(prompt, category=memory.ALL) for prompt in prompts]

    def system(name: str) -> EngineSystem:
        return EngineSystem(name, lambda: many.within(budget, name).engine, llm.tokenizer, params)

    alone, together = (
        _measure(many, [system(name) for name in drafters], wide, count, 1, params, origin)
        for count in (1, batch)
    )
    return [
        {**row, "budget_bytes": budget, "batch": batch}
        for row in memory.times(alone, together, origin)
    ]


def _print(rows: Sequence[Row], batches: Sequence[Row]) -> None:
    from forerun.cli import console
    from forerun.core import sizes
    from forerun.lab.bench.report import number, percent

    out = console.report()
    lines: list[tuple[object, ...]] = []
    for row in rows:
        cut = f"{row['cut']:g}%"
        if "error" in row:
            lines.append((row["drafter"], cut, row["error"], *[""] * 6))
            continue
        range_ = "" if row["kept_lo"] is None else f"{row['kept_lo']:.2f}-{row['kept_hi']:.2f}"
        lines.append(
            (
                row["drafter"], cut, row["with"], sizes.format_size(row["generation_bytes"]),
                row["blocks"], number(row["tok_s"], 1), percent(row["kept"]), range_,
                number(row["tau"], 2),
            )
        )  # fmt: skip
    columns = (
        "drafter",
        "cut",
        "runs with",
        "generation\nmemory",
        "blocks",
        "tok/s",
        "kept",
        "range",
        "tau",
    )
    out.print(console.table(columns, lines, num_left=3))
    if batches:
        first = batches[0]
        out.print(
            f"\n{first['batch']} together against one at a time, within {sizes.format_size(first['budget_bytes'])}:"
        )
        figures = ("tok_s_alone", "tok_s_together")
        lines = [
            (row["drafter"], *(number(row[name], 1) for name in figures), number(row["times"], 2))
            for row in batches
        ]
        out.print(console.table(("drafter", "tok/s alone", "tok/s together", "times"), lines))
