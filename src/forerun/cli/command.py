"""Commands and groups of click that read their arguments as `cli.arguments` does and print help as `cli.help` does."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import click

from forerun.cli import arguments, help
from forerun.core import registry
from forerun.core.errors import ConfigError, given_as, unknown


class Command(click.Command):
    """A command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, after those of other engines were taken out. Raises ConfigError."""
        if ctx.resilient_parsing:  # to complete a word
            return super().parse_args(ctx, args)
        parsed = ctx.meta[arguments.META] = arguments.prepare(self, ctx, args)
        try:
            with given_as(parsed.typed):
                return super().parse_args(ctx, parsed.words)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """List what can follow the command's name."""
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces[:1], *(["[MODEL]"] if help.takes_model(self) else []), *pieces[1:]]

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: they stand with the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options in groups; then the commands below, if there are any."""
        help.write(help.entries(self, ctx), formatter)


class Group(Command, click.Group):
    """A command with others below it: `bench_report.py` is `report` of `bench`. Each is imported when it is needed."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings |= {"invoke_without_command": True, "subcommand_metavar": "[COMMAND]"}
        super().__init__(*args, **settings)

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

    def _word(self, name: str) -> str:
        return name.removeprefix(f"{self.name}_").replace("_", "-")


def _load(name: str) -> click.Command:
    command: click.Command = registry.load("commands", name).command
    return command


def _first_sentence(about: str) -> str:
    paragraph = " ".join(inspect.cleandoc(about).partition("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return head + "." if dot else paragraph
