"""What tuning does around its search: times passes, checks what came of it and shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from operator import itemgetter
from statistics import fmean, median
from typing import Any

import click

from forerun.cli import console, tables
from forerun.core.costs import CostCurve
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.drafting.parse import split_list
from forerun.drafting.spec import DrafterSpec
from forerun.lab.bench import summary
from forerun.lab.bench.kernels import Case, in_turns, timers
from forerun.lab.bench.report import ratio, speedup
from forerun.lab.bench.run import Bench, EngineSystem, Message
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.output import Column, number, show_table
from forerun.lab.store import Store
from forerun.lab.tune.learn import Made
from forerun.lab.tune.search import PLAIN, Autotune, DrafterFigures, candidates
from forerun.llm import LLM

ROUNDS = 2
"""How often the winner and plain decoding answer the prompts in turn."""
CONTEXTS, WIDTHS = (128, 512), (1, 2, 4, 8, 16, 32)
"""Of the passes that are timed; widths are rows."""
MEASURED = ("drafter", "prompts", "identical", "speedup", "speedup_lo", "speedup_hi", "tau")
"""Of the winner's results, those that are shown."""


def specs_of(given: str | None) -> list[DrafterSpec]:
    """Read the drafters to try, each once; a misspelt one is refused before anything is loaded."""
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
    row = compare(llm, [chosen], groups, max_tokens)[0]
    highest = row["speedup_hi"]
    is_slower = isinstance(highest, float) and highest < 1
    return PLAIN if is_slower else chosen, {key: row[key] for key in MEASURED}


def encode(llm: LLM, chat: Sequence[Message]) -> list[int]:
    """Encode a conversation; a base model goes on with its words."""
    if llm.tokenizer.chat_template is not None:
        return llm.encode([*chat])
    return llm.encode("".join(str(message["content"]) for message in chat))


def taus(
    llm: LLM, names: Sequence[str], groups: Sequence[PromptGroup], max_tokens: int
) -> list[float]:
    """Count tokens a pass with every draft in full, which no load changes; of an LLM without a controller."""
    prompts = [
        encode(llm, [{"role": "user", "content": each.prompts[0].turns[0]}]) for each in groups
    ]
    search = Autotune(
        lambda name: llm.with_drafter(name).engine, prompts, max_tokens, CostCurve({1: 1.0})
    )
    return [search.figures(name).tau for name in names]


def compare(
    llm: LLM, names: Sequence[str], groups: Sequence[PromptGroup], max_tokens: int
) -> list[summary.Row]:
    """Measure drafters in turns with plain decoding, as users run them; a row each, the ratio to the first in it.

    Ends the command where one changes a token.
    """
    llm.config = replace(llm.config, controller=True)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    systems = [EngineSystem.of(llm, name, params) for name in (PLAIN, *names)]
    bench = Bench(
        groups, systems, partial(encode, llm), Store({"temperature": 0}), num_rounds=ROUNDS
    )
    bench.run(f"{names[-1]} beside plain decoding")
    rows = summary.rows(bench.rounds, bench.store.origin, names[0])
    totals = {row["drafter"]: row for row in rows if row["category"] == summary.ALL}
    for name in names:
        if totals[name]["identical"] != totals[name]["prompts"]:
            console.note(f"{name} changed tokens: forerun verify -d shows where")
            raise click.exceptions.Exit(1)
    return [totals[name] for name in names]


def learned(
    made: Made, before: summary.Row, after: summary.Row, in_full: Sequence[float], note: str
) -> dict[str, Any]:
    """Return what was made and what it brought, as JSON values; `table` is None if it is not better than before."""
    keys = ("speedup", "speedup_lo", "speedup_hi", "tau")
    gain = {key: after[key] for key in ("over_baseline", "over_baseline_lo", "over_baseline_hi")}
    return {
        "table": str(made.path) if in_full[1] > in_full[0] else None,
        "answers": str(made.answers),
        "tokens": made.num_tokens,
        "contexts": made.num_contexts,
        "before": {key: before[key] for key in keys},
        "measured": {key: after[key] for key in MEASURED},
        "tau_in_full": [round(tau, 4) for tau in in_full],
        **gain,
        "network": note,
    }


def show_learned(document: Mapping[str, Any]) -> None:
    """Print the drafter before and after, where the table lies, and whether a network would pay."""
    rows = (
        ("default", document["before"], "1.00x"),
        ("with the table", document["measured"], ratio(document, "over_baseline")),
    )
    columns: dict[str, Column] = {
        "drafter": itemgetter(0),
        "speed-up": lambda row: ratio(row[1], "speedup"),
        "tau": lambda row: number(row[1]["tau"], 2),
        "over default": itemgetter(2),
    }
    show_table(rows, columns)
    out = tables.report()
    before, after = document["tau_in_full"]
    out.print(
        f"{document['measured']['prompts']} prompts that it did not learn from, tokens as in plain decoding; "
        f"{tables.TAU}"
    )
    out.print(f"with every draft in full: tau {before:.3f}, with the table {after:.3f}")
    where = "no better than what is there: not kept"
    if document["table"]:
        where = f"{document['table']}: the default drafter finds it"
    made_of = f"{document['tokens']} tokens of answers in {document['answers']}"
    out.print(f"{where} ({made_of})", soft_wrap=True)
    out.print(document["network"], soft_wrap=True)


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
