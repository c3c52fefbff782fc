"""Arguments and options with groups, and the help page of a command.

A page shows one name of an option first; its further names, such as those of other engines, end its text.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import click

from forerun.core import options

MODEL = "model"
"""The option that a word without a dash is as well: `forerun plan a.gguf`."""
MODELS = "MODEL..."
"""What help calls the argument of a command that takes several models."""
PROMPT = "prompt"
"""The argument of commands whose words are a prompt: there the model needs its -m."""
MAX_WIDTH, NARROW = 100, 70
"""Columns of a help page: at most, and below which names take less room than they need."""
_TYPES: dict[object, str] = {int: "integer", float: "float"}


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
    """The option of a dataclass's field, declared by `core.options.option`; its help is the field's docstring."""

    def __init__(
        self, _: Sequence[str], *, owner: Any, field: str, group: str, **settings: Any
    ) -> None:
        declared, kind = owner.__dataclass_fields__[field].metadata, FieldType(owner, field)
        flags = (f"--{field.replace('_', '-')}", *declared["flags"])
        short = [flag for flag in flags if not flag.startswith("--")]
        long = [flag for flag in flags if flag.startswith("--")]
        if kind.is_switch:
            long = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in long]
        else:
            settings |= {"type": kind, "multiple": kind.is_list}
            settings["metavar"] = declared["metavar"] or None
        names = [field, *short[:1], *long, *short[1:]]
        super().__init__(names, group=declared["group"] or group, **settings)
        self.owner = owner

    @property
    def text(self) -> str:
        """Read the docstring, which takes longer than all else of a command."""
        return " ".join(options.docstrings(self.owner)[str(self.name)].split())


class FieldType(click.ParamType):
    """The values of a dataclass's field, one by one where they are several."""

    def __init__(self, owner: Any, field: str) -> None:
        hint = options.type_hints(owner)[field]
        is_literal, self.is_list = (typing.get_origin(hint) is each for each in (Literal, tuple))
        first, *_ = [hint] if is_literal else [*typing.get_args(hint), hint]
        self.field, self.hint = field, first if self.is_list else hint
        self.is_switch = first is bool
        self.choices = [str(each) for each in typing.get_args(first)]
        self.name = _TYPES.get(first, "text")

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a text. Raises ConfigError."""
        return options.convert(self.field, value, self.hint)

    def get_metavar(self, param: Any, ctx: Any) -> str | None:
        """Join the choices, if there are few."""
        return "|".join(self.choices) or None

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        """Complete one of few values, and any other as a file's name."""
        from click.shell_completion import CompletionItem

        words = str(param.make_metavar(ctx)).split("|")
        if len(words) == 1:
            return [CompletionItem(incomplete, type="file")]
        words = [word for word in words if not word.isupper()]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def takes_model(command: click.Command) -> bool:
    """Tell whether a command's model may be given without -m, and it has no argument for it."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    has_argument = any(
        each.name == PROMPT or each.metavar in ("MODEL", MODELS) for each in arguments
    )
    return not has_argument and any(
        isinstance(each, click.Option) and each.name == MODEL for each in command.params
    )


def entries(command: click.Command, ctx: click.Context) -> list[HelpEntry]:
    """List the arguments and options of a command in the order of their groups."""
    result = [_entry(each, ctx) for each in command.get_params(ctx)]
    if takes_model(command):
        result.insert(0, HelpEntry("Arguments", "MODEL", "The model, instead of --model."))
    groups = [*dict.fromkeys(("Arguments", "Options", *(entry.group for entry in result)))]
    return sorted(result, key=lambda entry: groups.index(entry.group))


def _entry(parameter: click.Parameter, ctx: click.Context) -> HelpEntry:
    text = str(getattr(parameter, "text", ""))
    if not isinstance(parameter, click.Option):
        return HelpEntry("Arguments", parameter.human_readable_name.replace("_", "-"), text)
    long = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
    shorts = [name for name in parameter.opts if not name.startswith("--")]
    short = next((name for name in shorts if len(name) == 2 or name == parameter.opts[0]), None)
    also = tuple(name for name in parameter.opts if name not in (long, short))
    default = parameter.to_info_dict()["default"]
    takes = "" if parameter.is_flag else parameter.make_metavar(ctx)
    if parameter.secondary_opts:
        long = f"--[no-]{long.removeprefix('--')}"
        default = {True: "on", False: "off"}.get(default)
    names = f"{long if short in (None, long) else f'{short}, {long}'} {takes}".rstrip()
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    shown = "" if default is None or default is False or default == () else str(default)
    group = getattr(parameter, "group", "Options")
    return HelpEntry(group, names, text or parameter.help or "", shown, also)


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
