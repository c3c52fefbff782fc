"""`forerun bench kernels`: what passes cost, against one row, reading the weights, and other engines' passes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

REPEATS, REPEATS_BESIDE = 30, 5

Cases = Annotated[
    str,
    typer.Option(
        "--cases",
        "--widths",
        help="[SEQUENCESx]ROWS[@CONTEXT],...: 512@0 reads a prompt, 32x1@128 is a batch.",
    ),
]
Context = Annotated[int, typer.Option(help="Tokens in the cache where a case does not say.")]
Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeats", "--rounds", help="Rounds over all cases; default: 30, or 5 beside others."
    ),
]
Peers = Annotated[str | None, typer.Option(help="Engines to time beside ours: llama.cpp.")]
OneThread = Annotated[bool, typer.Option("--one-thread", help="Also time ours on a single thread.")]
Out = Annotated[Path | None, typer.Option(help="JSON of the results, for forerun bench report.")]


@opt.engine(without=(*opt.PASSES, "kv"), drafter="none")
def command(
    config: EngineConfig,
    cases: Cases = "1,2,4,8,16,32",
    context: Context = 128,
    repeats: Repeats = None,
    peers: Peers = None,
    peers_dir: shared.PeersDir = Path(".peers"),
    one_thread: OneThread = False,
    out: Out = None,
    as_json: opt.Json = False,
) -> None:
    """Time passes of some shapes, a read of the weights' bytes, and other engines, in turns. Prints v(k) and GB/s."""
    from forerun.cli import console
    from forerun.lab.bench import kernels
    from forerun.lab.bench.peers import base
    from forerun.model.config import flops_per_token

    shapes = [kernels.Case.of(text, context) for text in opt.names(cases)]
    alone: dict[str, kernels.Passes] = {}
    if one_thread:  # first, so that both are not in memory
        timers = kernels.timers(opt.load(config, threads=1).model, shapes, kernels.BURST_S)
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
        steps = kernels.measure(llm.model, shapes, rounds=repeats, others=others)
        *_, timings = console.track(steps, "timing passes", repeats)
    finally:
        for worker in workers:
            worker.close()
    document = {
        **console.environment(config.model, "none", llm.model.num_threads),
        "provenance": provenance.origin(config, llm, context=context, repeats=repeats),
        "mflop_row": round(flops_per_token(llm.model.config, context) / 1e6, 2),
        **timings.document(),
    }
    publish(document, lambda: kernels.show(document), as_json=as_json, out=out)
