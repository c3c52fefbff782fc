"""`forerun bench kernels`: what passes cost, against one row, reading the weights, and other engines' passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


REPEATS, REPEATS_BESIDE = 30, 5


@opt.engine(without=(*opt.PASSES, "kv"), drafter="none")
def command(
    config: EngineConfig,
    cases: str = typer.Option(
        "1,2,4,8,16,32",
        "--cases",
        "--widths",
        help="[SEQUENCESx]ROWS[@CONTEXT],...: 512@0 reads a prompt, 32x1@128 is a batch.",
    ),
    context: int = typer.Option(128, help="Tokens in the cache where a case does not say."),
    repeats: int | None = typer.Option(
        None,
        "--repeats",
        "--rounds",
        help="Rounds over all cases; default: 30, or 5 beside others.",
    ),
    peers: str | None = typer.Option(None, help="Engines to time beside ours: llama.cpp."),
    peers_dir: Path = typer.Option(Path(".peers"), help="Where make peers put their environments."),
    one_thread: bool = typer.Option(
        False, "--one-thread", help="Also time ours on a single thread."
    ),
    out: Path | None = typer.Option(None, help="JSON of the results, for forerun bench report."),
    as_json: opt.Json = False,
) -> None:
    """Time passes of some shapes, a read of the weights' bytes, and other engines, in turns. Prints v(k) and GB/s."""
    import torch

    from forerun.cli import console
    from forerun.lab.bench import kernels
    from forerun.lab.bench.peers import base
    from forerun.model.config import flops_per_token

    shapes = [kernels.Case.of(text, context) for text in opt.names(cases)]
    alone: dict[str, kernels.Passes] = {}
    if one_thread:  # first, because torch has as many threads as the model loaded last
        timers = kernels.timers(opt.load(config, threads=1).model, shapes, kernels.BURST_S)
        alone[f"{kernels.OURS}, 1 thread"] = lambda case: timers[case]()
    llm = opt.load(config)
    setup = base.Setup(llm.path, torch.get_num_threads(), 0, peers_dir)
    workers = [base.passes(name, setup) for name in opt.names(peers)]
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
        **console.environment(config.model, "none"),
        "provenance": opt.origin(config, llm, context=context, repeats=repeats),
        "mflop_row": round(flops_per_token(llm.model.config, context) / 1e6, 2),
        **timings.document(),
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(document)
    else:
        _print(document)


def _print(document: Mapping[str, Any]) -> None:
    from forerun.cli import console
    from forerun.lab.bench.kernels import OURS
    from forerun.lab.bench.report import number, percent

    columns = ["pass", "rows", "ms", "v", "tok/s", "GB/s", "band-\nwidth", "int8\npeak"]
    digits = {"ms": 2, "v": 2, "tok_s": 0, "gb_s": 1}
    has_peers = any("peer" in row for row in document["rows"])
    columns += ["who", "times\nours", "range"] if has_peers else []
    lines = []
    for row in document["rows"]:
        figures = [number(row[key], places) for key, places in digits.items()]
        shares = [percent(row["bandwidth_share"]), percent(row["peak_share"])]
        range_ = f"{row['lo']:.2f}-{row['hi']:.2f}"
        beside = [row.get("peer", OURS), number(row["times_ours"], 2), range_] if has_peers else []
        lines.append([row["case"], row["k"], *figures, *shares, *beside])
    out = console.report()
    out.print(console.table(columns, lines))
    step = document["step_over_stream"]
    out.print(
        f"{document['weights_mb']} MB of weights at {document['bandwidth_gb_s']} GB/s: {document['stream_ms']} ms"
        + (f"; a step of one row takes {step} times that" if step else "")
    )
    if document["peak_gop_s"]:
        out.print(f"int8 dot products on registers: {document['peak_gop_s']} Gop/s")
