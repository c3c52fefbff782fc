"""`forerun`: finds the commands of this folder and maps errors to one line.

Commands import what they need when they run, so `forerun --help` never waits for torch.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from forerun import cli
from forerun.core.errors import ForerunError

NOT_GROUPED = ("check_drafter",)
"""Commands of their own, though their first word is another command."""


def app() -> typer.Typer:
    """The application with every command of the folder; `bench_report.py` is `report` of the command `bench`."""
    result = typer.Typer(
        name="forerun",
        help="Speculative decoding on CPUs: faster answers with exactly the same tokens.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    result.callback()(_root)
    names = [m.name for m in pkgutil.iter_modules(cli.__path__)]
    names = sorted(name for name in names if not name.startswith("_") and name != "main")
    modules = {name: importlib.import_module(f"forerun.cli.{name}") for name in names}
    groups = {
        name: typer.Typer(invoke_without_command=True, callback=modules[name].command)
        for name in names
        if any(other.startswith(f"{name}_") for other in names if other not in NOT_GROUPED)
    }
    for name, module in modules.items():
        first, _, second = name.partition("_")
        if name in groups:
            result.add_typer(groups[name], name=name)
        elif first in groups:
            is_hidden = getattr(module, "HIDDEN", False)
            groups[first].command(second.replace("_", "-"), hidden=is_hidden)(module.command)
        else:
            result.command(name.replace("_", "-"))(module.command)
    return result


def main() -> None:
    """Entry point. Exit codes: 0 fine, 1 the answer is no (verify), 2 a user's mistake, 130 Ctrl-C."""
    try:
        app()()
    except ForerunError as error:
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(" ".join(str(error).split()), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _version(asked: bool) -> None:
    if asked:
        import forerun

        typer.echo(f"forerun {forerun.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
