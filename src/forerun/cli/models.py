"""`forerun models`: what can be run, what is there, and the disk that packed weights take."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli import _options as opt


def command(
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Delete all packed weights; models stay.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """List the models forerun knows by name and those in the cache, and what packed weights take."""
    from dataclasses import asdict

    from forerun.cli import _console as console
    from forerun.formats.hub import known_models
    from forerun.nn import packed
    from forerun.tune.profile import choices

    if clear_cache:
        freed = packed.clear()
        console.stderr().print(f"deleted {freed / 2**20:.0f} MiB of packed weights")
    models, files = known_models(), packed.packed_files()
    profiles = {m.name: choices(m.path) if m.path else [] for m in models}
    nbytes = sum(path.stat().st_size for path in files)
    if as_json:
        rows = [
            {k: str(v) if k == "path" and v else v for k, v in asdict(m).items()}
            | {"profiles": profiles[m.name]}
            for m in models
        ]
        taken = {"path": str(packed.packed_dir()), "files": len(files), "nbytes": nbytes}
        console.print_json({"models": rows, "packed": taken})
        return
    lines = []
    for model in models:
        size = f"{model.nbytes / 2**20:.0f} MiB"
        here = "yes" if model.path else f"forerun pull {model.name}"
        tuned = ", ".join(profiles[model.name]) or "no"
        lines.append((model.name, size, model.licence, here, tuned, model.description))
    columns = ("name", "size", "licence", "here", "tuned", "what")
    console.stdout().print(console.table(columns, lines, num_left=len(columns)))
    if files:
        console.stdout().print(
            f"\npacked weights: {nbytes / 2**20:.0f} MiB in {packed.packed_dir()}; "
            "--clear-cache deletes them"
        )
