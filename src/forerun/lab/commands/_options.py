"""Options that several commands of the laboratory have."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli.options import PATH, Decorator

peers_dir = click.option(
    "--peers-dir",
    type=PATH,
    default=Path(".peers"),
    help="Where make peers put their environments.",
)
plots = click.option("--plots/--no-plots", default=True, help="Draw PNG and SVG.")
categories = click.option("--categories", help="Only prompts of these, e.g. code,maths,chat.")
out = click.option("--out", type=PATH, help="JSON of the results.")
out_resumed = click.option(
    "--out", type=PATH, help="JSONL of the results; what it holds already is not repeated."
)
rounds = click.option("--rounds", default=1, help="How often all is measured.")
kept_answers = click.option(
    "--answers", type=PATH, help="JSONL of the answers; what it holds is not made again."
)
limit = click.option("--limit", type=int, help="So many prompts, evenly over the categories.")


def prompt_file(flag: str) -> Decorator:
    """Make the option of a file of prompts."""
    text = "builtin, or a file of prompts (.jsonl, or one a line)."
    return click.option(flag, default="builtin", help=text)


def answer_tokens(default: str) -> Decorator:
    """Make the option for the tokens of answers to make."""
    text = "Tokens of answers to make, such as 200k or 5M."
    return click.option("--tokens", default=default, help=text)
