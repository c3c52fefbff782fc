"""`forerun drafters`: what can be given to -d, with options and the names other engines use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.drafters._describe import DrafterDoc


def command(
    name: Annotated[
        str | None, typer.Argument(help="A drafter, or the path of a file with one.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the drafters, or the options of one. Join two by + (the second where it is faster) or ++ (both)."""
    from dataclasses import asdict

    from forerun.cli import _console as console
    from forerun.core import registry
    from forerun.drafters._describe import describe

    docs = [describe(each) for each in ([name] if name else registry.names("drafters"))]
    if as_json:
        console.print_json({"drafters": [asdict(doc) for doc in docs]})
    elif name:
        _show(docs[0])
    else:
        _list(docs)


def _list(docs: list[DrafterDoc]) -> None:
    from rich.table import Table

    from forerun.cli import _console as console

    table = Table(box=None, pad_edge=False)
    for column in ("name", "what", "elsewhere"):
        table.add_column(column, overflow="fold")
    for doc in docs:
        table.add_row(doc.name, doc.summary, ", ".join(doc.aliases))
    console.stdout().print(table)
    console.stdout().print(
        "\n-d NAME:option=value,...; forerun drafters NAME explains the options", highlight=False
    )


def _show(doc: DrafterDoc) -> None:
    from rich.table import Table

    from forerun.cli import _console as console

    out = console.stdout()
    out.print(f"{doc.name} ({doc.origin}): {doc.summary}", highlight=False)
    if doc.aliases:
        out.print(f"elsewhere: {', '.join(doc.aliases)}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("option", "takes", "default", "what"):
        table.add_column(column, overflow="fold")
    for option in doc.options:
        default = "required" if option.default is None else option.default
        aliases = ", ".join(doc.option_aliases.get(option.name, ()))
        what = " ".join(option.help.split()) + (f" Elsewhere: {aliases}." if aliases else "")
        table.add_row(option.name, option.type, default, what)
    out.print(table if doc.options else "no options")
