"""`forerun bench report`: what people read of measurements: markdown and plots. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.bench.pass_costs import PassCosts


def command(
    files: Annotated[
        list[Path],
        typer.Argument(help="What bench --out (.jsonl) and bench kernels --out (.json) wrote."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to; default: the first file's.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG and SVG.")] = True,
    as_json: opt.Json = False,
) -> None:
    """Write report.md, with plots beside it, from measurements of runs and of what passes cost."""
    from forerun.bench import costs, record, report, summary
    from forerun.cli import _console as console

    folder = files[0].parent if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    costs = {file: costs.read(file) for file in files if costs.is_document(file)}
    sections, documents = ["# Benchmark\n"], []
    for file in files:
        if file in costs:
            continue
        origin, measurements = record.read(file)
        rows = summary.rows(measurements, origin)
        own = [cost for cost in costs.values() if cost.model == origin.get("model")]
        cost = next((cost for cost in own if cost.peer is None), None)
        drawn = _draw(folder, file.stem, own, rows) if plots else {}
        sections.append(report.markdown(origin, rows, drawn, cost))
        documents.append({"provenance": origin, "rows": rows})
    if costs:
        drawn = _draw(folder, next(iter(costs)).stem, [*costs.values()]) if plots else {}
        sections.append(report.markdown_of_passes([*costs.values()], drawn))
    text = "\n".join(sections)
    (folder / "report.md").write_text(text, encoding="utf-8")
    console.stdout().print(text, markup=False)
    if as_json:
        console.print_json(documents[0] if len(documents) == 1 else {"documents": documents})


def _draw(
    folder: Path, name: str, costs: list[PassCosts], rows: list[dict[str, object]] | None = None
) -> dict[str, str]:
    """Pictures of measurements, or without rows of the costs alone."""
    from forerun.bench.plots import draw, draw_passes
    from forerun.cli._console import working

    with working("drawing"):
        if rows is None:
            return draw_passes(costs, folder, name)
        return draw(rows, folder, name, costs)
