"""`forerun drafters`: what can be given to -d, with options and the names other engines use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.cli.help import MAX_WIDTH, HelpEntry, write
from forerun.compat import engine as compat

if TYPE_CHECKING:
    from forerun.drafters.base.find import DrafterDoc


@opt.command()
@opt.argument("name", required=False, help="A drafter, or the path of a file with one.")
@opt.as_json
def command(
    name: str | None,
    as_json: bool,
) -> None:
    """List the drafters, or the options of one. ++ joins two, whose drafts then make one tree."""
    from dataclasses import asdict

    from forerun.cli import console
    from forerun.core import registry
    from forerun.drafters.base.find import describe

    names = [compat.drafter(name)] if name else registry.names("drafters")
    docs = [describe(each) for each in names]
    if as_json:
        console.print_json({"drafters": [asdict(doc) | _elsewhere(doc) for doc in docs]})
    elif name:
        _show(docs[0])
    else:
        _print(
            "",
            [_entry(doc) for doc in docs],
            "-d NAME:option=value,... takes one, also by the names of other engines. "
            "forerun drafters NAME explains the options.",
        )


def _entry(doc: DrafterDoc) -> HelpEntry:
    """Write a drafter as a line of the list."""
    options = ", ".join(option.name for option in doc.options)
    text = f"{doc.summary} Options: {options or 'none'}."
    return HelpEntry("Drafters", doc.name, text, also=compat.methods_of(doc.name))


def _show(doc: DrafterDoc) -> None:
    """Print one drafter with what its options take and mean."""
    about = f"{doc.name} ({doc.origin}): {doc.summary}"
    if methods := compat.methods_of(doc.name):
        about += f" In other engines: {', '.join(methods)}."
    entries = []
    for option in doc.options:
        default = "required" if option.default is None else f"default: {option.default or 'none'}"
        text = f"{' '.join(option.help.split())} [{option.type}; {default}]"
        also = compat.names_of(option.name)
        entries.append(HelpEntry("Options", option.name, text, also=also))
    _print(about, entries, "" if entries else "No options.")


def _print(before: str, entries: list[HelpEntry], after: str) -> None:
    """Print entries as help has them, between two texts."""
    formatter = click.HelpFormatter(max_width=MAX_WIDTH)
    if before:
        formatter.write_text(before)
    write(entries, formatter)
    if after:
        formatter.write_paragraph()
        formatter.write_text(after)
    click.echo(formatter.getvalue(), nl=False)


def _elsewhere(doc: DrafterDoc) -> dict[str, object]:
    """List other engines' names of the drafter and its options."""
    names = {one.name: compat.names_of(one.name) for one in doc.options}
    named = {option: names for option, names in names.items() if names}
    return {"aliases": compat.methods_of(doc.name), "option_aliases": named}
