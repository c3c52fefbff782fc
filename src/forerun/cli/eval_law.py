"""`forerun eval law`: the proof of the first promise for sampling: drafting changes no probability."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forerun.eval.law import Check, Report


@opt.engine(
    without=("controller", "max_num_seqs"), controller=False, max_model_len=512
)  # more drafts prove more
@opt.sampling("top_k", "min_p")
def command(
    config: EngineConfig,
    params: SamplingParams,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="A text to go on; repeatable; default: ours."),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "--temp", help="Repeatable; default: 0.7 and 1."),
    ] = None,
    top_p: Annotated[
        list[float] | None, typer.Option("--top-p", help="Repeatable; default: 0.9 and 1.")
    ] = None,
    length: Annotated[int, typer.Option("--length", help="Tokens of a sequence.")] = 3,
    samples: Annotated[int, typer.Option("--samples", help="Sequences of each check.")] = 1000,
    seed: Annotated[int, typer.Option("-s", "--seed", help="Of the first sample.")] = 0,
    false_alarm: Annotated[
        float, typer.Option("--false-alarm", help="Chance that a right engine is called wrong.")
    ] = 1e-4,
    batch: Annotated[int, typer.Option("--batch", help="Sequences decoded together.")] = 32,
    as_json: opt.Json = False,
) -> None:
    """Hold sampled sequences, drafted and verified, against the target's exact law. Exits 1 if it is broken."""
    from forerun.cli import _console as console
    from forerun.core.errors import ConfigError
    from forerun.eval import law

    opt.check_least("batch", batch, 1)
    if not 0 < false_alarm < 1:
        raise ConfigError(f"false_alarm must be above 0 and below 1, got {false_alarm}")
    settings = [
        replace(params, temperature=t, top_p=p)
        for t, p in product(temperature or (0.7, 1.0), top_p or (0.9, 1.0))
    ]
    llm = opt.load(config, max_num_seqs=batch)
    prompts = [llm.encode(text) for text in prompt or law.PROMPTS]
    steps = law.run(llm.engine, prompts, settings, length=length, num_samples=samples, seed=seed)
    report = law.Report(_watch(steps, len(prompts) * len(settings)), false_alarm)
    _print(report)
    if as_json:
        named = console.environment(config.model, llm.drafter_spec.name)
        console.print_json(named | report.document())
    if report.broken:
        raise typer.Exit(1)


def _watch(steps: Iterator[tuple[Check, ...]], num_steps: int) -> tuple[Check, ...]:
    """All checks, with the time left on stderr in a terminal."""
    from rich.progress import track

    from forerun.cli import _console as console

    stderr = console.stderr()
    each = track(steps, "sampling", total=num_steps, console=stderr, disable=not stderr.is_terminal)
    return tuple(check for checks in each for check in checks)


def _print(report: Report) -> None:
    from rich.table import Table

    from forerun.cli import _console as console

    table = Table(box=None, pad_edge=False)
    columns = ("prompt", "T", "top-p", "length", "samples", "cells", "chi2", "p")
    for column in (*columns, "drafted", "accepted", "law"):
        table.add_column(column, justify="right")
    for check in report.checks:
        params, verdict = check.params, "BROKEN" if check in report.broken else "holds"
        if check.impossible:
            verdict += f": {check.impossible} impossible"
        sizes = (check.length, check.samples, check.cells)
        table.add_row(
            str(check.prompt + 1),
            f"{params.temperature:g}",
            f"{params.top_p:g}",
            *map(str, sizes),
            f"{check.statistic:.1f}",
            f"{check.p_value:.3g}",
            str(check.drafted),
            str(check.accepted),
            verdict,
        )
    out = console.stdout()
    out.print(table)
    num_broken = len(report.broken)
    out.print(
        f"{len(report.checks) - num_broken} of {len(report.checks)} checks hold; below p = "
        f"{report.threshold:.2g} a check fails, so a right engine fails one report "
        f"in {1 / report.false_alarm:,.0f}"
    )
    if not report.was_tested:
        out.print("nothing was drafted and rejected: this says nothing about verification")
