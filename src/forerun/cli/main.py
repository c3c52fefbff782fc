"""`forerun`: finds the commands of both houses and maps errors to one line.

Commands import what they need when they run, so `forerun --help` never waits for the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from forerun.cli.help import USAGE_ERROR, Command, Group, entries, main_name
from forerun.core import registry
from forerun.core.device import NO_TORCH
from forerun.core.errors import ForerunError

NOT_GROUPED = ("check_drafter",)
"""Commands of their own, though their first word is another command."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Answers": ("generate", "chat", "serve", "demo"),
    "Models": ("models", "pull", "rm", "check", "plan", "quantize"),
    "Drafters": ("drafters", "autotune", "train", "trim_vocab", "check_drafter", "export_drafter"),
    "Measurements": ("bench", "eval", "verify"),
}
"""Groups of the list of commands, in order; a command in none goes to the end."""
OTHERS = "More"

_KINDS = {"INT": "a whole number", "FLOAT": "a number"}
_PIPE_CLOSED = 141
"""Exit code of a program that a closed pipe has ended: 128 + SIGPIPE."""


def app(asked: str = "") -> typer.Typer:
    """Make the application with every command there is; `bench_report.py` is `report` of the command `bench`.

    Where a command is asked for, it and its subcommands alone are imported.
    """
    result = typer.Typer(
        name="forerun",
        cls=Group,
        invoke_without_command=True,
        callback=_root,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    names = registry.names("commands")
    if (given := asked.replace("-", "_")) in names:
        names = [name for name in names if f"{name}_".startswith(f"{given}_")]
    listed = [name for group in GROUPS.values() for name in group]
    names.sort(key=lambda name: (listed.index(name) if name in listed else len(listed), name))
    modules = {name: registry.load("commands", name) for name in names}
    parents: dict[str, typer.Typer] = {}
    for name, module in modules.items():
        panel = next((group for group, own in GROUPS.items() if name in own), OTHERS)
        first, _, second = name.partition("_")
        word = name.replace("_", "-")
        if any(other.startswith(f"{name}_") for other in names if other not in NOT_GROUPED):
            parents[name] = typer.Typer(
                cls=Group, invoke_without_command=True, callback=module.command
            )
            result.add_typer(parents[name], name=word, rich_help_panel=panel)
        elif first in parents:
            parents[first].command(second.replace("_", "-"), cls=Command)(module.command)
        else:
            result.command(word, cls=Command, rich_help_panel=panel)(module.command)
    return result


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the answer is no (verify), 2 a user's mistake, 130 Ctrl-C."""
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _PIPE_CLOSED
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        command = get_command(app(*arguments[:1]))
        with command.make_context("forerun", [*arguments]) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except ForerunError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return _refuse(NO_TORCH)
        package, _, drafter = (error.name or "").rpartition(".")
        if package != "forerun.drafters":
            raise
        return _refuse(f"this needs the drafter '{drafter}', which is not there")
    except USAGE_ERROR as error:
        return _refuse(_mistake(error, arguments))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 0


def _refuse(message: str) -> int:
    """Print one line on stderr about what the user can put right."""
    has_colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    mark = "\033[1;31merror:\033[0m" if has_colours else "error:"
    print(mark, " ".join(message.split()), file=sys.stderr)
    return 2


def _mistake(error: Exception, arguments: Sequence[str]) -> str:
    """Explain a mistake in the arguments: what was given, what is allowed, and where to read on."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    message = error.format_message().rstrip(".").replace("(s)", "")  # type: ignore[attr-defined]
    message = message[:1].lower() + message[1:]
    if message.startswith("missing argument") and parameter is not None:
        message = f"missing argument {main_name(parameter)}"
    if message.startswith("invalid value") and context is not None:
        message = _wrong_value(context, parameter, arguments)
    if "unexpected extra argument" in message:
        message += ": a text with spaces needs quotes around it"
    path = "forerun" if context is None else context.command_path
    return f"{message}; see {path} --help"


def _wrong_value(context: typer.Context, parameter: Any, arguments: Sequence[str]) -> str:
    """Quote the value that an option does not take."""
    takes = next(
        (each.takes for each in entries(context.command) if main_name(parameter) in each.names),  # type: ignore[arg-type]
        "",
    )
    name, value = main_name(parameter), ""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        option, equals, attached = word.partition("=")
        if option in parameter.opts:
            name, value = option, f", got {(attached if equals else after)!r}"
    return f"{name} must be {_KINDS.get(takes, takes)}{value}"


def _version(asked: bool) -> None:
    if asked:
        import forerun

        typer.echo(f"forerun {forerun.__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", help="Print the version.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Speculative decoding on CPUs: faster answers with exactly the same tokens.

    forerun COMMAND --help explains a command. A first answer: forerun generate "What is a prime number?"
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
