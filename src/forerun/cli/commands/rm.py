"""`forerun rm`: delete models from the cache."""

from __future__ import annotations

import sys

import click

from forerun.cli import options as opt
from forerun.core.errors import ConfigError


@opt.command()
@opt.argument(
    "names", nargs=-1, required=True, metavar="NAME...", help="Names as `models` lists them."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(names: tuple[str, ...], yes: bool) -> None:
    """Delete models from the cache. Files elsewhere stay."""
    from forerun.cli import console
    from forerun.core import sizes
    from forerun.hub import names as hub

    models = [hub.in_cache(name) for name in dict.fromkeys(names)]
    for model in models:
        what = f"{model.name} ({sizes.format_size(model.nbytes)})"
        if not yes and not _confirms(f"delete {what}?"):
            console.note(f"{model.name} stays")
            continue
        hub.remove(model.name)
        console.note(f"deleted {what}")


def _confirms(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} there is no terminal to ask on: give --yes")
    return click.confirm(question, err=True)
