"""`forerun eval`: the quality of answers, not their speed: perplexity, fidelity, calibration, the distribution test."""

from __future__ import annotations

import click

from forerun.cli.command import Group


@click.command("eval", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Perplexity, task scores and the sampling distribution of a model, as it is stored and computed here."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
