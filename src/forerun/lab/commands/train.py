"""`forerun train`: make what drafters are made of."""

from __future__ import annotations

import click

from forerun.cli.command import Group


@click.command("train", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Make the tables that drafters guess from."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
