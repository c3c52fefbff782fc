"""`forerun service`: the server as a service of a user's own session."""

from __future__ import annotations

import click

from forerun.cli.command import Group


@click.command("service", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Run the server in the background from now on, under systemd, and with every session of yours."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
