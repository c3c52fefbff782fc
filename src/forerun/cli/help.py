"""Arguments and options with groups, and the help page of a command.

A page shows one name of an option first; its further names, such as those of other engines, end its text.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import click

from forerun.core import options

MAX_WIDTH, NARROW = 100, 70
"""Columns of a help page: at most, and below which names take less room than they need."""
_TYPES: dict[object, str] = {int: "INTEGER", float: "FLOAT"}


class HelpEntry(NamedTuple):
    """An argument, an option or a command; `also` are further names, `default` is empty if there is none."""

    group: str
    names: str
    text: str
    default: str = ""
    also: tuple[str, ...] = ()


class Argument(click.Argument):
    """An argument with a help text, which click itself has from version 8.5 on."""

    def __init__(self, *args: Any, help: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.text = help


class Option(click.Option):
    """An option with a heading in help."""

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group


class FieldOption(Option):
    """One name of a dataclass's field, declared by `core.options.option`, so that what was typed is known.

    Help shows the field's first name alone, with the others behind its docstring. Values stay texts: `read` converts.
    """

    def __init__(
        self, flag: str, owner: Any, field: str, group: str = "", shown: str = "", **settings: Any
    ) -> None:
        """`shown` is the default in help. The parameter's name is the flag's, which no two share."""
        declared = owner.__dataclass_fields__[field].metadata
        hint = options.type_hints(owner)[field]
        is_literal, self.is_list = (typing.get_origin(hint) is each for each in (Literal, tuple))
        first, *_ = [hint] if is_literal else [*typing.get_args(hint), hint]
        self.owner, self.field, self.flag, self.shown = owner, field, flag, shown
        self.names = options.flags_of(owner)[field]
        self.is_first, self.hint = flag == self.names[0], first if self.is_list else hint
        words = "|".join(str(each) for each in typing.get_args(first))
        if first is bool:
            typed = f"{flag}/--no-{flag.removeprefix('--')}"
        else:
            typed, takes = flag, declared["metavar"] or words or _TYPES.get(first, "TEXT")
            settings = {"metavar": takes, "multiple": self.is_list, "type": str} | settings
        group = declared["group"] or group
        super().__init__([flag.replace("-", "_"), typed], group=group, default=None, **settings)

    def read(self, given: Any) -> Any:
        """Convert what was given. Raises ConfigError."""
        if self.is_list:
            return tuple(options.convert(self.field, each, self.hint) for each in given)
        return options.convert(self.field, given, self.hint)

    @property
    def text(self) -> str:
        """Read the docstring, which takes longer than all else of a command."""
        return " ".join(options.docstrings(self.owner)[self.field].split())

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete one of few values, and any other as a file's name."""
        from click.shell_completion import CompletionItem

        words = str(self.metavar).split("|")
        if len(words) == 1:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    def entry(self) -> HelpEntry:
        """Describe the field."""
        short = next((name for name in self.names[1:2] if not name.startswith("--")), None)
        also = tuple(name for name in self.names[1:] if name != short)
        long = f"--[no-]{self.flag.removeprefix('--')}" if self.is_flag else self.flag
        takes = "" if self.is_flag else f" {self.metavar}"
        names = f"{short}, {long}{takes}" if short else f"{long}{takes}"
        return HelpEntry(self.group, names, self.text, self.shown, also)


def entries(command: click.Command, ctx: click.Context) -> list[HelpEntry]:
    """List the arguments and options of a command in the order of their groups."""
    result = [
        each.entry() if isinstance(each, FieldOption) else _entry(each, ctx)
        for each in (*getattr(command, "arguments", ()), *command.get_params(ctx))
        if not getattr(each, "hidden", False)
        and (not isinstance(each, FieldOption) or each.is_first)
    ]
    groups = [*dict.fromkeys(("Arguments", "Options", *(entry.group for entry in result)))]
    return sorted(result, key=lambda entry: groups.index(entry.group))


def _entry(parameter: click.Parameter, ctx: click.Context) -> HelpEntry:
    if not isinstance(parameter, click.Option):
        name = parameter.human_readable_name.replace("_", "-").strip("[]")
        return HelpEntry("Arguments", name, str(getattr(parameter, "text", "")))
    long = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
    short = next((name for name in parameter.opts if len(name) == 2), None)
    also = tuple(name for name in parameter.opts if name not in (long, short))
    default = parameter.to_info_dict()["default"]
    takes = "" if parameter.is_flag else parameter.make_metavar(ctx)
    if parameter.secondary_opts:
        long = f"--[no-]{long.removeprefix('--')}"
        default = {True: "on", False: "off"}.get(default)
    names = f"{long if short in (None, long) else f'{short}, {long}'} {takes}".rstrip()
    shown = "" if default is None or default is False or default == () else str(default)
    group = getattr(parameter, "group", "Options")
    return HelpEntry(group, names, parameter.help or "", shown, also)


def write(entries: Iterable[HelpEntry], formatter: click.HelpFormatter) -> None:
    """Write the entries to a help page, with a heading above each group."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for entry in entries:
        default = f" [default: {entry.default}]" if entry.default else ""
        also = f" Also: {', '.join(entry.also)}." if entry.also else ""
        groups.setdefault(entry.group, []).append((entry.names, entry.text + default + also))
    for group, rows in groups.items():
        with formatter.section(group):
            formatter.write_dl(rows, col_max=26 if formatter.width > NARROW else 4)
