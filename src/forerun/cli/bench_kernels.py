"""`forerun bench kernels`: what a pass over k rows costs, against one row and against reading the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.bench.kernels import PassCosts


@opt.engine(without=opt.PASSES, drafter="none")
def command(
    config: EngineConfig,
    context: Annotated[int, typer.Option("--context", help="Tokens already in the cache.")] = 128,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Passes of each width; medians count.")
    ] = 30,
    widths: Annotated[
        str, typer.Option("--widths", help="Rows of the passes to time; 1 is the measure.")
    ] = "1,2,4,8,16,32",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="JSON of the figures, for forerun bench report."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Time passes of 1 to 32 rows and a read of the weights' bytes, in turns. Prints v(k) and GB/s."""
    from rich.progress import track

    from forerun.bench.kernels import measure
    from forerun.bench.record import provenance
    from forerun.cli import _console as console
    from forerun.formats.hub import resolve
    from forerun.nn.cost import flops_per_token

    llm = opt.load(config)
    stderr = console.stderr()
    costs: PassCosts | None = None
    for costs in track(  # noqa: B007  # the last one counts
        measure(llm.model, context=context, repeats=repeats, widths=_widths(widths)),
        "timing passes",
        total=repeats,
        console=stderr,
        disable=not stderr.is_terminal,
    ):
        pass
    assert costs is not None
    _print(costs)
    path, backend = resolve(config.model), type(llm.model).__name__
    origin = provenance(
        path.stem, opt.quant_name(config, path), backend=backend, context=context, repeats=repeats
    )
    document = {
        **console.environment(config.model, "none"),
        "provenance": origin,
        "mflop_row": round(flops_per_token(llm.model.config, context) / 1e6, 2),
        **costs.document(),
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(document)


def _widths(given: str) -> tuple[int, ...]:
    from forerun.core.errors import ConfigError

    try:
        return tuple(dict.fromkeys(int(width) for width in given.split(",")))
    except ValueError:
        raise ConfigError(
            f"widths must be whole numbers with commas between, got '{given}'"
        ) from None


def _print(costs: PassCosts) -> None:
    from rich.table import Table

    from forerun.cli import _console as console

    table = Table(box=None, pad_edge=False)
    for column in ("rows", "ms", "v", "GB/s", "of the bandwidth", "of the int8 peak"):
        table.add_column(column, justify="right")
    document = costs.document()
    rows = document["rows"]
    assert isinstance(rows, list)
    for row in rows:
        share = row["peak_share"]
        table.add_row(
            str(row["k"]),
            f"{row['ms']:.2f}",
            f"{row['v']:.2f}",
            f"{row['gb_s']:.1f}",
            f"{row['bandwidth_share']:.0%}",
            "" if share is None else f"{share:.0%}",
        )
    out = console.stdout()
    out.print(table)
    out.print(
        f"{document['weights_mb']} MB of weights at {document['bandwidth_gb_s']} GB/s: "
        f"{document['stream_ms']} ms; a step of one row takes {document['step_over_stream']} times that"
    )
    if costs.peak_ops_s:
        out.print(f"int8 dot products on registers: {document['peak_gop_s']} Gop/s")
