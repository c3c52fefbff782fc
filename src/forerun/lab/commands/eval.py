"""`forerun eval`: the quality of answers, not their speed: perplexity and fidelity."""

from __future__ import annotations

import click

from forerun.cli.command import Group


@click.command("eval", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure the perplexity of a model, and how close it is to the same model in fp32."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
