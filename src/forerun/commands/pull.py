"""`forerun pull`: fetch a model into the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import DEFAULT_MODEL


def command(
    model: Annotated[str, typer.Argument(help="A known name or a hub name.")] = DEFAULT_MODEL,
    as_json: opt.Json = False,
) -> None:
    """Fetch a model, check it, keep it in the cache; harmless when it is there already."""
    from forerun.cli import console
    from forerun.hub.names import pull

    with console.working(f"fetching {model}"):
        path = pull(model)
    if as_json:
        console.print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        typer.echo(path)
