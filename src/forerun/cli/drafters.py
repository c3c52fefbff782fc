"""`forerun drafters`: what can be given to -d, with options and the names other engines use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from rich.console import Console

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
    out = console.stdout()
    if as_json:
        console.print_json({"drafters": [asdict(doc) for doc in docs]})
    elif name:
        _show(docs[0], out)
    else:
        lines = [(doc.name, doc.summary, ", ".join(doc.aliases)) for doc in docs]
        out.print(console.table(("name", "what", "elsewhere"), lines, num_left=3))
        out.print("\n-d NAME:option=value,...; forerun drafters NAME explains the options")


def _show(doc: DrafterDoc, out: Console) -> None:
    from forerun.cli import _console as console

    out.print(f"{doc.name} ({doc.origin}): {doc.summary}")
    if doc.aliases:
        out.print(f"elsewhere: {', '.join(doc.aliases)}")
    lines = []
    for option in doc.options:
        default = "required" if option.default is None else option.default
        aliases = ", ".join(doc.option_aliases.get(option.name, ()))
        what = " ".join(option.help.split()) + (f" Elsewhere: {aliases}." if aliases else "")
        lines.append((option.name, option.type, default, what))
    shown = console.table(("option", "takes", "default", "what"), lines, num_left=4)
    out.print(shown if lines else "no options")
