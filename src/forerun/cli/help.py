"""What `--help` prints: headed groups of options, one name an option, other engines' names of it at the end.

Nothing is cut: a text that does not fit beside the names goes below them. `entries` is also what the
reference page is made of. Written without rich, so that help is there at once.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer
from typer.core import TyperCommand, TyperGroup

from forerun.cli.arguments import Reading, takes_model

if TYPE_CHECKING:
    from typer import Context

NAMES_WIDTH = 28
"""Columns of the names, where there is room for a text beside them."""
WIDEST = 100
NARROW = 70
"""In fewer columns every text stands below its names."""

_GLUE = "\N{NO-BREAK SPACE}"
_TYPES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}

USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__bases__[0])
"""What a mistake in the arguments raises; its module differs between versions of typer."""


@dataclass(frozen=True, slots=True)
class HelpEntry:
    """An argument, an option or a command; `also` are further names, `default` is empty if there is none."""

    group: str
    names: str
    takes: str
    text: str
    default: str
    also: tuple[str, ...]


class _Page:
    """A command that prints our help; before the base class."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page into Click's formatter."""
        formatter.write(_page(self, ctx))  # type: ignore[arg-type]

    def get_help_option(self, ctx: Any) -> Any:
        """Make --help false unless given: typer would import pydantic to learn what None means."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.default = False
        return option


class Command(_Page, Reading, TyperCommand):
    """A command with our help."""


class Group(_Page, Reading, TyperGroup):
    """Commands with our help; a command's `rich_help_panel` is its group."""


def usage(command: TyperCommand | TyperGroup, context: Context) -> str:
    """Write the command's path and what follows it, in one line."""
    parts = [context.command_path]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    for argument in arguments:
        name = _metavar(argument).removesuffix("...") + ("..." if argument.nargs == -1 else "")
        parts.append(name if argument.required else f"[{name}]")
    if takes_model(command):
        parts.insert(1, "[MODEL]")
    parts.append("[OPTIONS]")
    if isinstance(command, TyperGroup):
        parts.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    return " ".join(parts)


def entries(command: TyperCommand | TyperGroup) -> list[HelpEntry]:
    """List what can be given to a command, in the order of its groups; then the commands below it."""
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    found = [_entry(p, hints.get(p.name or "")) for p in command.params if not _is_hidden(p)]
    if takes_model(command):
        found.insert(
            0, HelpEntry("Arguments", "MODEL", "", "The model, instead of --model.", "", ())
        )
    found.append(HelpEntry("Options", "-h, --help", "", "Show this page.", "", ()))
    below = command.commands if isinstance(command, TyperGroup) else {}
    for name, each in below.items():
        if not each.hidden:
            group = getattr(each, "rich_help_panel", None)
            group = group if isinstance(group, str) else "Commands"
            found.append(HelpEntry(group, name, "", _first_sentence(each.help or ""), "", ()))
    groups = [*dict.fromkeys(("Arguments", "Options", *(entry.group for entry in found)))]
    return sorted(found, key=lambda entry: groups.index(entry.group))


def main_name(parameter: Any) -> str:
    """Choose the one name of an option or argument that texts use."""
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])


def _is_hidden(parameter: Any) -> bool:
    return parameter.name == "help" or getattr(parameter, "hidden", False)


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper().replace("_", "-"))


def _entry(parameter: Any, hint: object) -> HelpEntry:
    text = " ".join((parameter.help or "").split())
    if parameter.param_type_name == "argument":
        return HelpEntry("Arguments", _metavar(parameter), "", text, "", ())
    long = main_name(parameter)
    shorts = [name for name in parameter.opts if not name.startswith("--")]
    short = next((name for name in shorts if len(name) == 2 or name == parameter.opts[0]), None)
    also = tuple(name for name in parameter.opts if name not in (long, short))
    default, shown = parameter.default, parameter.show_default
    takes = ""
    if parameter.secondary_opts:
        long = f"--[no-]{long.removeprefix('--')}"
        default = "on" if default else "off"
    elif hint is not bool:
        takes = parameter.metavar or type_name(hint)
    names = long if short is None or short == long else f"{short}, {long}"
    no_default = default is None or default is False or callable(default) or default in ((), [])
    group = parameter.rich_help_panel or "Options"
    default = "" if no_default else str(default)
    return HelpEntry(group, names, takes, text, shown if isinstance(shown, str) else default, also)


def type_name(hint: Any) -> str:
    """Name what an option takes, from its annotation: its choices, or the kind of value."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        names = (type_name(each) for each in typing.get_args(hint) if each is not types.NoneType)
        return next(names)
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, tuple):
        return type_name(typing.get_args(hint)[0])
    return _TYPES.get(hint, "TEXT")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return head + "." if dot else paragraph


def _page(command: TyperCommand | TyperGroup, context: Context) -> str:
    head = f"{_bold('Usage:')} {usage(command, context)}"
    about = inspect.cleandoc(command.help or "")
    return (
        "\n\n".join([paragraphs(head, "  "), paragraphs(about), listing(entries(command))]) + "\n"
    )


def paragraphs(text: str, indent: str = "") -> str:
    """Break a text at the terminal's width; further lines are indented."""
    parts = text.split("\n\n")
    return "\n\n".join("\n".join(_wrap(part, _width(), indent)) for part in parts)


def listing(found: Sequence[HelpEntry]) -> str:
    """Write the entries with a heading above each group."""
    groups = {entry.group: [each for each in found if each.group == entry.group] for entry in found}
    return "\n\n".join(
        "\n".join([_bold(f"{group}:"), *(line for each in own for line in _lines(each, _width()))])
        for group, own in groups.items()
    )


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, WIDEST))


def _bold(text: str) -> str:
    has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\033[1m{text}\033[0m" if has_colours else text


def _lines(entry: HelpEntry, width: int) -> Iterator[str]:
    """Yield the names, and the text beside them or below."""
    names = f"  {entry.names} {entry.takes}".rstrip()
    text = entry.text
    text += f" [default:{_GLUE}{entry.default}]" if entry.default else ""
    text += f" Also: {', '.join(entry.also)}." if entry.also else ""
    indent = " " * (6 if width < NARROW else NAMES_WIDTH)
    wrapped = _wrap(f"{indent}{text}", width, indent)
    if not text:
        yield names
    elif width >= NARROW and len(names) + 2 <= NAMES_WIDTH:
        yield names.ljust(NAMES_WIDTH) + wrapped[0][NAMES_WIDTH:]
        yield from wrapped[1:]
    else:
        yield from [names, *wrapped]


def _wrap(text: str, width: int, indent: str) -> Sequence[str]:
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return [line.replace(_GLUE, " ") for line in lines]
