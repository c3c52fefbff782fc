"""Options that several commands of the laboratory have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PeersDir = Annotated[Path, typer.Option(help="Where make peers put their environments.")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG and SVG.")]
ApiKey = Annotated[str | None, typer.Option(metavar="KEY", help="The key that it asks for.")]
Categories = Annotated[
    str | None, typer.Option(help="Only prompts of these, e.g. code,maths,chat.")
]
Batch = Annotated[int, typer.Option("--batch", "--batch-size", help="Prompts decoded together.")]
OutDrawn = Annotated[
    Path | None, typer.Option(help="JSON of the results; a plot is drawn beside it.")
]
OutResumed = Annotated[
    Path | None, typer.Option(help="JSONL of the results; what it holds already is not repeated.")
]
PromptFile = Annotated[
    str, typer.Option(help="builtin, or a file of prompts (.jsonl, or one a line).")
]
Rounds = Annotated[int, typer.Option(help="How often all is measured.")]
AnswerTokens = Annotated[str, typer.Option(help="Tokens of answers to make, such as 200k or 5M.")]
KeptAnswers = Annotated[
    Path | None, typer.Option(help="JSONL of the answers; what it holds is not made again.")
]
NewTokens = Annotated[int, typer.Option("-n", "--max-tokens", help="New tokens a prompt, at most.")]
Limit = Annotated[int | None, typer.Option(help="So many prompts, evenly over the categories.")]
