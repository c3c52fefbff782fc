"""`forerun bench report`: what people read of measurements: markdown and plots. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.bench.summary import Row


def command(
    files: Annotated[list[Path], typer.Argument(help="JSONL files that bench --out wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to; default: the first file's.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG and SVG.")] = True,
    as_json: opt.Json = False,
) -> None:
    """Write report.md, with plots beside it, from the measurements of one or more runs."""
    from forerun.bench import record, report, summary
    from forerun.cli import _console as console

    folder = files[0].parent if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    sections, documents = ["# Benchmark\n"], []
    for file in files:
        origin, measurements = record.read(file)
        rows = summary.rows(measurements, origin)
        drawn = _draw(rows, folder, file.stem) if plots else {}
        sections.append(report.markdown(origin, rows, drawn))
        documents.append({"provenance": origin, "rows": rows})
    text = "\n".join(sections)
    (folder / "report.md").write_text(text, encoding="utf-8")
    console.stdout().print(text, markup=False)
    if as_json:
        console.print_json(documents[0] if len(documents) == 1 else {"documents": documents})


def _draw(rows: list[Row], folder: Path, name: str) -> dict[str, str]:
    from forerun.bench.plots import draw
    from forerun.cli._console import working

    with working("drawing"):
        return draw(rows, folder, name)
