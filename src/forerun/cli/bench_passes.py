"""`forerun bench passes`: our passes and other engines', the same shapes, in turns in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.bench.passes import Comparison, Passes
    from forerun.bench.peers.base import PeerContender

OURS = "forerun"


@opt.engine(without=opt.PASSES, drafter="none")
def command(
    config: EngineConfig,
    cases: Annotated[
        str,
        typer.Option(
            "--cases", help="[SEQUENCESx]ROWS[@CONTEXT], comma-separated; 512@0 reads a prompt."
        ),
    ] = "1,2,4,8,16,512@0,1@4096,8x1@128,32x1@128",
    peers: Annotated[
        str | None, typer.Option("--peers", help="Engines to time beside ours: llama.cpp.")
    ] = None,
    peers_dir: Annotated[
        Path, typer.Option("--peers-dir", help="Where make peers put their environments.")
    ] = Path(".peers"),
    one_thread: Annotated[
        bool, typer.Option("--one-thread", help="Also time ours on a single thread.")
    ] = False,
    rounds: Annotated[int, typer.Option("--rounds", help="Turns of everyone at every case.")] = 5,
    as_json: opt.Json = False,
) -> None:
    """Time shapes of passes against other engines on the same file. Ratios are paired within a round."""
    from rich.progress import track

    from forerun.bench.passes import Case, Comparison, OwnPasses, compare
    from forerun.bench.record import provenance
    from forerun.cli import _console as console
    from forerun.formats.hub import resolve

    shapes = [Case.of(text.strip()) for text in cases.split(",")]
    contenders: dict[str, Passes] = {}
    if one_thread:
        single = opt.load(config, threads=1)
        contenders[f"{OURS}, 1 thread"] = OwnPasses(single.model)
    llm = opt.load(config)
    contenders = {OURS: OwnPasses(llm.model), **contenders}
    workers = _workers(resolve(config.model), peers, peers_dir)
    stderr = console.stderr()
    comparison = Comparison()
    try:
        for worker in workers:
            worker.start()
        everyone = contenders | {str(worker.peer): worker for worker in workers}
        for comparison in track(  # noqa: B007  # the last one counts
            compare(everyone, shapes, rounds),
            "timing passes",
            total=rounds,
            console=stderr,
            disable=not stderr.is_terminal,
        ):
            pass
    finally:
        for worker in workers:
            worker.close()
    _print(comparison)
    if as_json:
        path = resolve(config.model)
        origin = provenance(
            path.stem, opt.quant_name(config, path), head_bits=config.head_bits, rounds=rounds
        )
        console.print_json({"provenance": origin, "rows": comparison.rows(OURS)})


def _workers(model: Path, given: str | None, folder: Path) -> list[PeerContender]:
    import torch

    from forerun.bench.peers import base

    setup = base.Setup(model, torch.get_num_threads(), 0, folder)
    names = filter(None, map(str.strip, (given or "").split(",")))
    return [base.passes(name, setup) for name in names]


def _print(comparison: Comparison) -> None:
    from rich.table import Table

    from forerun.cli import _console as console

    table = Table(box=None, pad_edge=False)
    table.add_column("pass")
    table.add_column("who")
    for column in ("ms", "best", "tok/s", "times ours", "range"):
        table.add_column(column, justify="right")
    for row in comparison.rows(OURS):
        table.add_row(
            str(row["case"]),
            str(row["contender"]),
            f"{row['ms']:.2f}",
            f"{row['ms_best']:.2f}",
            f"{row['tok_s']:.0f}",
            f"{row['times_ours']:.2f}",
            f"{row['lo']:.2f}-{row['hi']:.2f}",
        )
    console.stdout().print(table)
