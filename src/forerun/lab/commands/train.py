"""`forerun train`: make what drafters are made of."""

from __future__ import annotations

import click

from forerun.cli.command import Group


@click.command("train", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Make what drafters guess from: replies, tables, networks and draft models."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
