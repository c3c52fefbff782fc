"""What tuning does around its search: times passes, checks what came of it and shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from statistics import fmean, median

import click

from forerun._native import CostCurve
from forerun.cli import console, tables
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.drafters.base.parse import split_list
from forerun.drafters.base.spec import DrafterSpec
from forerun.lab.bench import summary
from forerun.lab.bench.kernels import Case, in_turns, timers
from forerun.lab.bench.report import speedup
from forerun.lab.bench.run import Bench, EngineSystem, Message
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.output import Column, show_table
from forerun.lab.store import Store
from forerun.lab.tune.search import PLAIN, Autotune, DrafterFigures, candidates
from forerun.llm import LLM

ROUNDS = 2
"""How often the winner and plain decoding answer the prompts in turn."""
CONTEXTS, WIDTHS = (128, 512), (1, 2, 4, 8, 16, 32)
"""Of the passes that are timed; widths are rows."""
MEASURED = ("drafter", "prompts", "identical", "speedup", "speedup_lo", "speedup_hi", "tau")
"""Of a drafter's results, those that are shown."""


def specs_of(given: str | None) -> list[DrafterSpec]:
    """Read the drafters to try, each once; a mistyped one is refused before anything is loaded."""
    names = candidates() if given is None else split_list(given)
    specs = {(spec := DrafterSpec.of(name)).text(): spec for name in names}
    specs.pop(PLAIN, None)
    if not specs:
        raise ConfigError(f"-d {given} leaves nothing to tune: name a drafter besides none")
    return list(specs.values())


def time_passes(llm: LLM, repeats: int) -> tuple[float, CostCurve]:
    """Return the milliseconds of a plain pass, and what passes of one sequence cost by their rows, in plain passes.

    The mean of two contexts. More rows never cost less, whatever the noise says.
    """
    longest = min(llm.max_len, llm.model.config.max_position) - max(WIDTHS)
    contexts = sorted({max(1, min(context, longest)) for context in CONTEXTS})
    cases = [Case(1, rows, context) for context in contexts for rows in WIDTHS]
    *_, seconds = tables.track(
        in_turns(timers(llm.model, cases), repeats), "timing passes", repeats
    )
    ms = {case: median(each) * 1e3 for case, each in seconds.items()}
    plain = {context: ms[Case(1, 1, context)] for context in contexts}
    means = [fmean(ms[Case(1, rows, c)] / plain[c] for c in contexts) for rows in WIDTHS]
    return fmean(plain.values()), CostCurve(dict(zip(WIDTHS, accumulate(means, max), strict=True)))


def check(
    llm: LLM, chosen: str, groups: Sequence[PromptGroup], max_tokens: int
) -> tuple[str, dict[str, object]]:
    """Measure the choice beside plain decoding, as users run it; return it, `none` if it is clearly slower."""
    if chosen == PLAIN:
        return chosen, {}
    row = compare(llm, [chosen], groups, max_tokens)(chosen, chosen)
    highest = row["speedup_hi"]
    is_slower = isinstance(highest, float) and highest < 1
    return PLAIN if is_slower else chosen, {key: row[key] for key in MEASURED}


def encode(llm: LLM, chat: Sequence[Message]) -> list[int]:
    """Encode a conversation; a base model goes on with its words."""
    if llm.tokenizer.chat_template is not None:
        return llm.encode([*chat])
    return llm.encode("".join(str(message["content"]) for message in chat))


def in_full(
    llm: LLM, groups: Sequence[PromptGroup], max_tokens: int, costs: CostCurve
) -> Callable[[str], DrafterFigures]:
    """Return what counts the tokens a pass of a drafter with every draft in full, which no load changes.

    Of an LLM without a controller.
    """
    prompts = [
        encode(llm, [{"role": "user", "content": each.prompts[0].turns[0]}]) for each in groups
    ]
    return Autotune(lambda name: llm.with_drafter(name).engine, prompts, max_tokens, costs).figures


def compare(
    llm: LLM, names: Sequence[str], groups: Sequence[PromptGroup], max_tokens: int
) -> Callable[[str, str], summary.Row]:
    """Measure drafters in turns with plain decoding, as users run them.

    Returns what gives a drafter's row, with the ratio of its speed to another's. Ends the command where one changes a
    token.
    """
    llm.config = replace(llm.config, controller=True)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    systems = [EngineSystem.of(llm, name, params) for name in (PLAIN, *names)]
    bench = Bench(
        groups, systems, partial(encode, llm), Store({"temperature": 0}), num_rounds=ROUNDS
    )
    bench.run("comparing with plain decoding")

    def row(name: str, baseline: str) -> summary.Row:
        rows = summary.rows(bench.rounds, bench.store.origin, baseline)
        return next(r for r in rows if (r["drafter"], r["category"]) == (name, summary.ALL))

    for name in names:
        total = row(name, name)
        if total["identical"] != total["prompts"]:
            console.note(f"{name} changed tokens: forerun verify -d shows where")
            raise click.exceptions.Exit(1)
    return row


def document(
    chosen: str, measured: Mapping[str, object], costs: CostCurve, tried: Iterable[DrafterFigures]
) -> dict[str, object]:
    """Return the results as JSON values; `drafters` are all settings that were tried."""
    return {
        "drafter": chosen,
        "measured": dict(measured),
        "passes": {rows: round(cost, 5) for rows, cost in costs.points.items()},
        "drafters": [
            {"expected": round(figures.speedup, 4), **asdict(figures)} for figures in tried
        ],
    }


def show(
    chosen: str,
    measured: Mapping[str, object],
    plain_ms: float,
    best: Sequence[DrafterFigures],
    num_tried: int,
) -> None:
    """Print a line for each drafter's best setting, and the choice as `-d` takes it."""
    columns: dict[str, Column] = {
        "setting": "drafter",
        "tau": ("tau", 2),
        "accepted": ("acceptance_rate", ".0%"),
        "expected": lambda figures: f"{figures.speedup:.2f}x",
        "measured": lambda figures: (
            speedup(measured) if measured.get("drafter") == figures.drafter else ""
        ),
    }
    out = tables.report()
    show_table(best, columns)
    out.print(
        f"{tables.TAU}; expected, measured: speed-up over plain decoding, the latter with its 95 % interval"
    )
    out.print(f"a plain pass takes {plain_ms:.2f} ms; best of {num_tried} settings:")
    note = "  (drafting is not faster here)" if chosen == PLAIN else ""
    out.print(f"-d {chosen}{note}", soft_wrap=True)
