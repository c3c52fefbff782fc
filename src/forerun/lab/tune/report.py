"""What autotune does around its search: times passes, checks the choice and shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from statistics import median

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from forerun.cli import console, tables
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.drafting.parse import split_list
from forerun.drafting.spec import DrafterSpec
from forerun.lab.bench import summary
from forerun.lab.bench.kernels import Case, in_turns, timers
from forerun.lab.bench.report import speedup
from forerun.lab.bench.run import Bench, EngineSystem
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.output import Column, show_table
from forerun.lab.store import Store
from forerun.lab.tune.figures import DrafterFigures, PassTime, PassTimes
from forerun.lab.tune.search import PLAIN, Report, candidates, shapes
from forerun.llm import LLM

ROUNDS = 2
"""How often the winner and plain decoding answer the prompts in turn."""
MEASURED = ("drafter", "prompts", "identical", "speedup", "speedup_lo", "speedup_hi", "tau")
"""Of the winner's results, those that are shown."""


def specs_of(given: str | None) -> list[DrafterSpec]:
    """The drafters to try, each once; a misspelt one is refused before anything is loaded."""
    names = candidates() if given is None else split_list(given)
    specs = {(spec := DrafterSpec.of(name)).text(): spec for name in names}
    specs.pop(PLAIN, None)
    if not specs:
        raise ConfigError(f"-d {given} leaves nothing to tune: name a drafter besides none")
    return list(specs.values())


@contextmanager
def bar() -> Iterator[Report]:
    """A progress bar with the time left, on stderr, in a terminal only."""
    stderr = tables.report(stderr=True)
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("")

        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def time_passes(llm: LLM, repeats: int) -> PassTimes:
    """What passes take here, of all shapes that autotune wants to know."""
    wanted = shapes(min(llm.max_len, llm.model.config.max_position))
    cases = {Case(num, rows // num, context): (context, num, rows) for context, num, rows in wanted}
    rounds = in_turns(timers(llm.model, [*cases]), repeats)
    *_, seconds = tables.track(rounds, "timing passes", repeats)
    return PassTimes(
        tuple(PassTime(*cases[case], round(median(s) * 1e3, 5)) for case, s in seconds.items())
    )


def check(
    llm: LLM, chosen: str, groups: Sequence[PromptGroup], max_tokens: int
) -> tuple[str, dict[str, object]]:
    """Measure the choice beside plain decoding, as users run it; return it, `none` if it is clearly slower."""
    if chosen == PLAIN:
        return chosen, {}
    llm.config = replace(llm.config, controller=True)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    systems = [EngineSystem.of(llm, name, params) for name in (PLAIN, chosen)]
    bench = Bench(groups, systems, llm.encode, Store({"temperature": 0}), num_rounds=ROUNDS)
    bench.run(f"{chosen} beside plain decoding")
    row = summary.totals(bench.rounds, bench.store.origin)[chosen]
    if row["identical"] != row["prompts"]:
        console.note(f"{chosen} changed tokens: forerun verify -d shows where")
        raise click.exceptions.Exit(1)
    highest = row["speedup_hi"]
    is_slower = isinstance(highest, float) and highest < 1
    return PLAIN if is_slower else chosen, {key: row[key] for key in MEASURED}


def document(
    chosen: str,
    measured: Mapping[str, object],
    passes: PassTimes,
    tried: Iterable[DrafterFigures],
) -> dict[str, object]:
    """The results as JSON values; `drafters` are all settings that were tried."""
    return {
        "drafter": chosen,
        "measured": dict(measured),
        "passes": [asdict(time) for time in passes.times],
        "drafters": [
            {"expected": round(figures.speedup(passes), 4), **asdict(figures)} for figures in tried
        ],
    }


def show(
    chosen: str,
    measured: Mapping[str, object],
    passes: PassTimes,
    best: Sequence[DrafterFigures],
    num_tried: int,
) -> None:
    """A line for each drafter's best setting, and the choice as `-d` takes it."""
    columns: dict[str, Column] = {
        "setting": "drafter",
        "tau": ("tau", 2),
        "accepted": ("acceptance_rate", ".0%"),
        "expected": lambda figures: f"{figures.speedup(passes):.2f}x",
        "measured": lambda figures: (
            speedup(measured) if measured.get("drafter") == figures.drafter else ""
        ),
    }
    out = tables.report()
    show_table(best, columns)
    out.print(
        f"{tables.TAU}; expected, measured: speed-up over plain decoding, the latter with its 95 % interval"
    )
    out.print(f"a plain pass takes {passes.plain_ms:.2f} ms; best of {num_tried} settings:")
    note = "  (drafting is not faster here)" if chosen == PLAIN else ""
    out.print(f"-d {chosen}{note}", soft_wrap=True)
