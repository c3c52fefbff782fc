"""`forerun plan`: what a model will take in memory, before it is loaded, and what a budget makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.engine.memory import MemoryPlan
    from forerun.engine.planner import Planner

MEANINGS = {
    "weights": "packed, as the kernels read them",
    "kv": "keys and values",
    "drafter_weights": "of a draft model or network",
    "drafter_kv": "its keys and values",
    "drafter_tables": "indexes, tables of next tokens",
    "step_buffers": "of the rows of one pass",
    "logits": "of the rows that are looked at together",
    "tokenizer": "pieces, merges, cache",
    "program": "Python, its libraries and modules",
    "loading": "while it is loaded, beyond what running takes",
    "server": "its threads and requests",
}


@opt.command()
@opt.engine(is_parallel=True, without=("min_draft", "controller"))
@click.option("--server", is_flag=True, help="Count what forerun serve takes as well.")
@opt.as_json
def command(
    config: EngineConfig,
    server: bool,
    as_json: bool,
) -> None:
    """Say what a model takes in memory, by component, without loading it; with a budget, what is given up for it.

    Keys and values stay as --kv says; what fewer bits would allow is said as well.

    Counted is all that the process holds, as top shows it. Exits 1 if a budget is too small, or without one if the
    machine has less memory available.
    """
    from forerun.cli import console, tables
    from forerun.cli.commands import _model_report
    from forerun.llm import planner_of
    from forerun.system.device import available_nbytes

    if server:
        import forerun.server.run  # noqa: F401  # its modules are counted where they are loaded
    config = replace(config, is_server=server)
    planner = planner_of(config)
    budget = config.budget_nbytes
    chosen = planner.plan()
    if budget is not None:
        chosen = planner.fitting(budget) or planner.smallest()
    limit = available_nbytes() if budget is None else budget
    fits = limit is None or chosen.total <= limit
    if as_json:
        document = {"components": dict(chosen.components), "total_bytes": chosen.total}
        least = {
            "smallest_bytes": planner.smallest_budget(),
            "drafting_bytes": planner.drafting_budget(),
            "smallest_bytes_by_kv": planner.rounded(),
        }
        speed = {"long": _model_report.long_context(planner)}
        console.print_json({**document, "fits": fits, **least, **speed})
    else:
        _print(planner, chosen)
        tables.report().print(f"\n{_verdict(planner, chosen, limit)}")
        if each := _fewer_bits(planner):
            tables.report().print(f"In fewer bits, which may change tokens: {each}.")
        said = _model_report.long_line(_model_report.long_context(planner))
        tables.report().print(f"Speed: {said}.")
    if not fits:
        raise click.exceptions.Exit(1)


def _fewer_bits(planner: Planner) -> str:
    """List the precisions of keys and values with which less works: each with less than any in more bits."""
    from forerun.core import sizes

    words, least = [], sizes.shown_up(planner.smallest_budget())
    for kv, nbytes in planner.rounded().items():
        if (shown := sizes.shown_up(nbytes)) != least:
            words.append(f"{shown} with --kv {kv}")
            least = shown
    return ", ".join(words)


def _print(planner: Planner, chosen: MemoryPlan) -> None:
    from forerun.cli import tables
    from forerun.core import sizes

    load, out = chosen.workload, tables.report()
    out.print(
        f"{planner.config.model} · drafter {chosen.drafter.name} · {load.num_seqs} sequences of at most "
        f"{load.max_len} tokens · {load.precision} keys and values · {chosen.num_blocks} blocks of them\n"
    )
    lines = [
        (name, MEANINGS[name], sizes.mebibytes(nbytes), f"{nbytes / chosen.total:.0%}")
        for name, nbytes in chosen.components.items()
        if nbytes or name != "loading"
    ]
    lines.append(("total", "", sizes.mebibytes(chosen.total), ""))
    out.print(tables.table(("component", "what it is", "bytes", "share"), lines, num_left=2))


def _verdict(planner: Planner, chosen: MemoryPlan, limit: int | None) -> str:
    """Say what fits, in a line or two."""
    from forerun.core import sizes

    least = f"the smallest budget that works is {sizes.shown_up(planner.smallest_budget())}"
    if planner.drafters[0].name != "none":
        least += f", drafting keeps its speed from {sizes.shown_up(planner.drafting_budget())} on"
    if planner.config.budget_nbytes is None:
        if limit is None or chosen.total <= limit:
            return f"It fits; {least}."
        return f"It does not fit the {sizes.mebibytes(limit)} that are available here; {least}."
    assert limit is not None
    if chosen.total > limit:
        return f"It does not fit {sizes.mebibytes(limit)}: {least}."
    given_up = planner.given_up(chosen)
    how = f", reduced to: {'; '.join(given_up)}" if given_up else " as it is"
    full = chosen.num_blocks // chosen.workload.blocks_seq
    return (
        f"It fits {sizes.mebibytes(limit)}{how}: {full} full sequence{'s' * (full > 1)} at a time, or more "
        f"shorter ones; {least}."
    )
