"""`forerun train`: make what drafters are made of."""

from __future__ import annotations

import typer


def command(context: typer.Context) -> None:
    """Make the tables that drafters guess from."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
