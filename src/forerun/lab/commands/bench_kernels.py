"""`forerun bench kernels`: what passes cost, against one row, reading the weights, and other engines' passes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.hub import machine
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

REPEATS, REPEATS_BESIDE = 30, 5


@opt.command()
@opt.engine(without=opt.PASSES, drafter="none")
@click.option(
    "--cases",
    "--widths",
    default="1,2,4,8,16,32",
    help="[SEQUENCESx]ROWS[@CONTEXT],...: 512@0 reads a prompt, 32x1@128 is a batch.",
)
@click.option("--context", default=128, help="Tokens in the cache where a case does not say.")
@click.option(
    "--repeats",
    "--rounds",
    type=int,
    help="Rounds over all cases; default: 30, or 5 beside others.",
)
@click.option("--peers", help="Engines to time beside ours: llama.cpp.")
@shared.peers_dir
@click.option("--one-thread", is_flag=True, help="Also time ours on a single thread.")
@click.option("--out", type=opt.PATH, help="JSON of the results, for forerun bench report.")
@opt.as_json
def command(
    config: EngineConfig,
    cases: str,
    context: int,
    repeats: int | None,
    peers: str | None,
    peers_dir: Path,
    one_thread: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time passes of some shapes, a read of the weights' bytes, and other engines, in turns. Prints v(k) and GB/s."""
    from forerun.cli import console, tables
    from forerun.lab.bench import kernels
    from forerun.lab.bench.peers import base
    from forerun.model.model import Draws

    shapes = [kernels.Case.of(text, context) for text in opt.names(cases)]
    alone: dict[str, kernels.Passes] = {}
    if one_thread:  # first, so that both are not in memory
        timers = kernels.timers(
            opt.load(config, threads=1).model, shapes, kernels.BURST_S, config.kv
        )
        alone[f"{kernels.OURS}, 1 thread"] = lambda case: timers[case]()
    llm = opt.load(config)
    setup = base.Setup(llm.path, llm.model.num_threads, 0, peers_dir)
    workers = [base.single(name, base.PASSES, setup) for name in opt.names(peers)]
    others = {str(peer.peer): peer.seconds for peer in workers} | alone
    if repeats is None:
        repeats = REPEATS_BESIDE if others else REPEATS
    try:
        for worker in workers:
            worker.start()
        steps = kernels.measure(llm.model, shapes, rounds=repeats, others=others, kv=config.kv)
        *_, timings = tables.track(steps, "timing passes", repeats)
    finally:
        for worker in workers:
            worker.close()
    document = {
        **console.environment(config.model, "none", llm.model.num_threads),
        "provenance": provenance.origin(config, llm, context=context, repeats=repeats),
        **timings.document(),
    }
    if not isinstance(llm.model, Draws):  # it is what `models` says of this processor
        _keep(document)
    publish(document, lambda: kernels.show(document), as_json=as_json, out=out)


def _keep(document: Mapping[str, Any]) -> None:
    """Keep the bytes a second of plain decoding, for `forerun models`; without a disk nothing is said of it."""
    one = next((row for row in document["rows"] if row["k"] == row["num_seqs"] == 1), None)
    if one is not None and one.get("gb_s"):
        measured = machine.Measured(str(document["model"]), float(one["gb_s"]))
        with suppress(OSError):
            machine.keep(measured, float(document["weights_mb"]) * 1e6)
