"""Commands and groups of click with the help of `cli.help`; a group imports a command when it is needed."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import click

from forerun.cli import help
from forerun.core import registry
from forerun.core.errors import ConfigError, unknown

MODEL = "model_words"
"""Name of the argument that is the model, instead of --model."""
ALIKE = 0.75
"""A mistyped word is answered with one at least so like it (`difflib`'s ratio), or with none."""
_LETTERS = re.compile(r"-[A-Za-z][A-Za-z-]+")


class Command(click.Command):
    """A command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Raises ConfigError."""
        try:
            return super().parse_args(ctx, args if ctx.resilient_parsing else self.words(ctx, args))
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words that click reads. Raises NoSuchOption for letters behind a dash: `-nx` is not `-n x`."""
        known = [flag for each in self.get_params(ctx) for flag in each.opts]
        for word in args[: args.index("--")] if "--" in args else args:
            flag = word.partition("=")[0]
            if _LETTERS.fullmatch(flag) and flag not in known:
                raise click.NoSuchOption(word, possibilities=known, ctx=ctx)
        return args

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: they stand with the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options in groups."""
        help.write(help.entries(self, ctx), formatter)


class Group(Command, click.Group):
    """A command with others below it: `bench_report.py` is `report` of `bench`. Each is imported when it is needed."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings |= {"invoke_without_command": True, "subcommand_metavar": "[COMMAND]"}
        super().__init__(*args, **settings)
        self.arguments = [each for each in self.params if each.name == MODEL]
        """What is read here, as click would take a command's name for it."""
        self.params = [each for each in self.params if each not in self.arguments]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """List what can follow the command's name."""
        options, *rest = super().collect_usage_pieces(ctx)
        return [options, *(str(each.metavar) for each in self.arguments), *rest]

    def words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words that click reads, where one that is not a command's name is the model."""
        _, rest, _ = self.make_parser(ctx).parse_args([*args])
        own = super().words(ctx, args[: len(args) - len(rest)])
        is_model = rest and self.arguments and not self._is_like(rest[0])
        return [*own, "-m", *rest] if is_model else args

    def modules(self) -> Mapping[str, str]:
        """Return the heading in help of each command below, by its file's name."""
        prefix = f"{self.name}_"
        return {
            name: "Commands" for name in registry.shipped("commands") if name.startswith(prefix)
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands' names."""
        return [self._word(name) for name in self.modules()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises ConfigError with the closest name if there is none."""
        modules = {self._word(name): name for name in self.modules()}
        if (name := modules.get(cmd_name.replace("_", "-"))) is not None:
            return _load(name)
        if ctx.resilient_parsing:
            return None
        raise ConfigError(unknown("command", cmd_name, modules))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and a sentence of each command."""
        super().format_options(ctx, formatter)
        below = [
            help.HelpEntry(heading, self._word(name), _first_sentence(_load(name).help or ""))
            for name, heading in self.modules().items()
        ]
        help.write(below, formatter)

    def _is_like(self, word: str) -> bool:
        return bool(difflib.get_close_matches(word, map(self._word, self.modules()), 1, ALIKE))

    def _word(self, name: str) -> str:
        return name.removeprefix(f"{self.name}_").replace("_", "-")


def _load(name: str) -> click.Command:
    command: click.Command = registry.load("commands", name).command
    return command


def _first_sentence(about: str) -> str:
    paragraph = " ".join(inspect.cleandoc(about).partition("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return head + "." if dot else paragraph
