"""`forerun cache`: what the prompt cache holds, and emptying it."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta

import click

from forerun.cli import options as opt
from forerun.core.config import AUTO


@opt.command()
@click.option("--prompt-cache", default=AUTO, metavar="DIR", help="The folder.", show_default=True)
@click.option("--clear", is_flag=True, help="Delete all that is stored, of all models.")
@opt.as_json
def command(
    prompt_cache: str,
    clear: bool,
    as_json: bool,
) -> None:
    """List the stored prompts by model: blocks of 64 tokens, bytes, when they were used last.

    --clear deletes the instructions for `forerun warm` too.
    Programs that run go on, and keep what they read later.
    """
    from forerun.cli import console, tables
    from forerun.core import sizes
    from forerun.core.errors import LoadError
    from forerun.model.prompt_cache import folder_of
    from forerun.server import instructions

    folder = folder_of(prompt_cache, 0)
    try:
        freed = folder.clear() + instructions.clear() if clear else 0
        models = folder.models()
    except OSError as error:
        raise LoadError(f"stored prompts cannot be read or deleted: {error}") from error
    if clear:
        console.note(f"deleted {sizes.format_size(freed)} of stored prompts")
    if as_json:
        rows = [dataclasses.asdict(model) for model in models]
        console.print_json({"path": str(folder.path), "freed_nbytes": freed, "models": rows})
        return
    lines = [
        (
            row.name,
            row.kv,
            row.blocks,
            sizes.format_size(row.nbytes),
            f"{timedelta(seconds=round(time.time() - row.used_s))} ago",
        )
        for row in models
    ]
    columns = ("model", "kv", "blocks", "size", "used")
    tables.report().print(
        tables.table(columns, lines, num_left=2) if lines else "nothing is stored"
    )
