"""`forerun pull`: fetch a model into the cache."""

from __future__ import annotations

import click

from forerun.cli import options as opt
from forerun.core.config import DEFAULT_MODEL


@opt.command()
@opt.argument("model", default=DEFAULT_MODEL, help="A known name or a hub name.")
@opt.as_json
def command(
    model: str,
    as_json: bool,
) -> None:
    """Fetch a model, check it, keep it in the cache; harmless when it is there already."""
    from forerun.cli import console
    from forerun.hub.names import pull

    with console.working(f"fetching {model}"):
        path = pull(model)
    if as_json:
        console.print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)
