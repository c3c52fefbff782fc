"""`forerun eval`: what a model says, rather than how fast: perplexity, scores of tasks, the distribution test."""

from __future__ import annotations

import typer


def command(context: typer.Context) -> None:
    """Perplexity, task scores and the sampling distribution of a model, as it is stored and computed here."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
