"""`forerun rm`: delete models from the cache, or only their packed copies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.errors import ConfigError, LoadError, unknown

if TYPE_CHECKING:
    from forerun.commands.models import Row


@opt.command()
@opt.argument("names", nargs=-1, metavar="NAME...", help="Names as `models` lists them.")
@click.option(
    "--packed", is_flag=True, help="Only packed copies, of all models if no name is given."
)
@click.option(
    "--learned",
    is_flag=True,
    help="Only what drafters learned (--learn), of all or the named models.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(
    names: tuple[str, ...],
    packed: bool,
    learned: bool,
    yes: bool,
) -> None:
    """Delete models, their packed copies and what was learned of them from the cache. Files elsewhere stay.

    Packed copies are made again when they are needed, so `rm --packed` does not ask. What was learned is not:
    `rm --learned` frees the disk of what was said, also without asking.
    """
    if packed and learned:
        raise ConfigError("say --packed or --learned, not both")
    if packed:
        _remove_copies(names)
    elif learned:
        _remove_learned(names)
    elif names:
        _remove_models(names, yes)
    else:
        raise ConfigError(
            "name the models to delete, or say --packed for all packed copies, --learned for all that was learned"
        )


def _remove_copies(names: Sequence[str]) -> None:
    from forerun.core import sizes
    from forerun.model.packed import folder as packed

    for name, wanted in _named(names):
        freed = packed.remove(copy for row in wanted for copy in row.copies)
        _say(f"deleted {sizes.format_size(freed)} of packed copies of {name}")
    if not names:
        freed = packed.remove(packed.default_folder().entries())
        _say(f"deleted {sizes.format_size(freed)} of packed copies; models stay")


def _remove_learned(names: Sequence[str]) -> None:
    from forerun.core import sizes
    from forerun.drafting import learned as learned_files

    for name, wanted in _named(names):
        freed = learned_files.remove([entry for row in wanted for entry in row.learned])
        _say(f"deleted {sizes.format_size(freed)} of what was learned of {name}")
    if not names:
        freed = learned_files.remove(learned_files.entries())
        _say(f"deleted {sizes.format_size(freed)} of what was learned; models stay")


def _named(names: Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
    """Find the rows of `forerun models` that each name or path means. Raises LoadError for one that means none."""
    from pathlib import Path

    from forerun.commands.models import rows

    models = rows() if names else []
    for name in names:
        path = Path(name).expanduser().resolve()
        wanted = [row for row in models if name == row.name or path == row.path]
        if not wanted:
            raise LoadError(unknown("model", name, (row.name for row in models)))
        yield name, wanted


def _remove_models(names: Sequence[str], yes: bool) -> None:
    from pathlib import Path

    from forerun.core import sizes
    from forerun.drafting import learned as learned_files
    from forerun.hub import names as hub
    from forerun.model.packed import folder as packed

    models: list[tuple[str, Path, bool]] = []
    for name in dict.fromkeys(names):
        if (elsewhere := opt.path_of(name)) != name:
            models.append((f"what was made of {elsewhere}", Path(elsewhere), False))
        else:
            model = hub.in_cache(name)
            assert model.path is not None
            models.append((f"{name} ({sizes.format_size(model.nbytes)})", model.path, True))
    for what, path, is_ours in models:
        copies = packed.of_model(path)
        if copies:
            nbytes = sizes.format_size(sum(copy.nbytes for copy in copies))
            what += f" and its packed copies ({nbytes})" if is_ours else f" ({nbytes})"
        what += "" if is_ours else "; the model stays"
        if not yes and not _confirms(f"delete {what}?"):
            _say(f"{path.stem} stays")
            continue
        learned = [e for e in learned_files.entries() if e.model == path.resolve()]
        if is_ours:
            hub.remove(path.stem)
        packed.remove(copies)
        learned_files.remove(learned)
        _say(f"deleted {what}")


def _confirms(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} there is no terminal to ask on: say --yes")
    return click.confirm(question, err=True)


def _say(text: str) -> None:
    from forerun.cli import console

    console.note(text)
