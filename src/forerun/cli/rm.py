"""`forerun rm`: delete models from the cache, or only their packed copies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from forerun.core.errors import ConfigError, LoadError, unknown


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Names as `models` lists them.")
    ] = None,
    packed: Annotated[
        bool,
        typer.Option("--packed", help="Only packed copies, of all models if no name is given."),
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete models and their packed copies from the cache. Files elsewhere are never deleted.

    Packed copies are made again when they are needed, so `rm --packed` does not ask.
    """
    if packed:
        _remove_copies(names or [])
    elif names:
        _remove_models(names, yes)
    else:
        raise ConfigError("name the models to delete, or say --packed for all packed copies")


def _remove_copies(names: list[str]) -> None:
    from pathlib import Path

    from forerun.cli.models import rows
    from forerun.core import sizes
    from forerun.nn import packed

    found = rows()
    for name in names:
        path = Path(name).expanduser().resolve()
        wanted = [row for row in found if name == row.name or path == row.path]
        if not wanted:
            raise LoadError(unknown("model", name, (row.name for row in found)))
        freed = packed.remove(copy for row in wanted for copy in row.copies)
        _say(f"deleted {sizes.shown(freed)} of packed copies of {name}")
    if not names:
        freed = packed.remove(packed.folder().entries())
        _say(f"deleted {sizes.shown(freed)} of packed copies; models stay")


def _remove_models(names: list[str], yes: bool) -> None:
    from forerun.core import sizes
    from forerun.formats import hub
    from forerun.nn import packed

    for model in [hub.in_cache(name) for name in dict.fromkeys(names)]:
        assert model.path is not None
        copies = packed.of_model(model.path)
        what = f"{model.name} ({sizes.shown(model.nbytes)})"
        if copies:
            what += f" and its packed copies ({sizes.shown(sum(c.nbytes for c in copies))})"
        if not yes and not _confirms(f"delete {what}?"):
            _say(f"{model.name} stays")
            continue
        hub.remove(model.name)
        packed.remove(copies)
        _say(f"deleted {what}")


def _confirms(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} there is no terminal to ask on: say --yes")
    return typer.confirm(question, err=True)


def _say(text: str) -> None:
    from forerun.cli import _console as console

    console.stderr().print(text)
