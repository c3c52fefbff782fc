"""`forerun bench report`: what people read of measurements: markdown and plots. Measures nothing."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.lab.commands import _options as shared


@opt.command()
@opt.argument(
    "files",
    nargs=-1,
    required=True,
    type=opt.PATH,
    help="What bench --out (.jsonl) and bench kernels --out (.json) wrote.",
)
@click.option("--out", type=opt.PATH, help="Folder to write to; default: the first file's.")
@shared.plots
@opt.as_json
def command(files: tuple[Path, ...], out: Path | None, plots: bool, as_json: bool) -> None:
    """Write report.md and its plots from the files of bench and bench kernels."""
    from forerun.cli import console
    from forerun.lab.bench import measurement, pass_costs, report, summary
    from forerun.lab.bench.plots import draw

    folder = files[0].parent if out is None else out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    of_passes = [file for file in files if file.suffix == ".json"]
    costs = [cost for file in of_passes for cost in pass_costs.read(file)]
    sections, documents, drawn = ["# Benchmark\n"], [], {}
    for file in files:
        if file in of_passes:
            continue
        origin, rounds = measurement.read(file)
        rows = summary.rows(rounds, origin)
        if plots:
            with console.working("drawing"):
                title = f"{origin.get('model')}, {origin.get('task')}"
                drawn = draw(("speedup", "acceptance"), rows, folder, file.stem, title=title)
        sections.append(report.markdown(origin, rows, drawn))
        documents.append({"provenance": origin, "rows": rows})
    if costs:
        title = ", ".join(dict.fromkeys(str(cost.model) for cost in costs))
        drawn = draw(("v",), costs, folder, of_passes[0].stem, title=title) if plots else {}
        sections.append(report.markdown_of_passes(costs, drawn))
    text = "\n".join(sections)
    (folder / "report.md").write_text(text, encoding="utf-8")
    if as_json:
        console.print_json(documents[0] if len(documents) == 1 else {"documents": documents})
    else:
        click.echo(text)
