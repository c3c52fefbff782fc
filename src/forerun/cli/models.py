"""`forerun models`: what can be run, and what is there."""

from __future__ import annotations

from forerun.cli import _options as opt


def command(as_json: opt.Json = False) -> None:
    """List the models forerun knows by name and those in the cache."""
    from dataclasses import asdict

    from rich.table import Table

    from forerun.cli import _console as console
    from forerun.engine.profile import choices
    from forerun.formats.hub import known_models

    models = known_models()
    profiles = {m.name: choices(m.path) if m.path else [] for m in models}
    if as_json:
        rows = [
            {k: str(v) if k == "path" and v else v for k, v in asdict(m).items()}
            | {"profiles": profiles[m.name]}
            for m in models
        ]
        console.print_json({"models": rows})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "size", "licence", "here", "tuned", "what"):
        table.add_column(column, overflow="fold")
    for model in models:
        size = f"{model.nbytes / 2**20:.0f} MiB"
        here = "yes" if model.path else f"forerun pull {model.name}"
        tuned = ", ".join(profiles[model.name]) or "no"
        table.add_row(model.name, size, model.licence, here, tuned, model.description)
    console.stdout().print(table)
