"""`forerun train data`: the model's replies to many prompts, which tables and drafters are made of."""

from __future__ import annotations

from pathlib import Path

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig


@opt.engine(max_num_seqs=16)
def command(
    config: EngineConfig,
    prompts: str = typer.Option("builtin", help="A file of prompts, JSONL or one a line; builtin."),
    tokens: str = typer.Option("1M", help="Tokens of answers to make, such as 200k or 5M."),
    answers: Path | None = typer.Option(
        None, help="JSONL of the answers; what it holds is not made again."
    ),
    licence: str | None = typer.Option(
        None, help="Of the prompts whose lines have no field 'license'."
    ),
    as_json: opt.Json = False,
) -> None:
    """Let the model answer prompts, for forerun train drafter and train table, which share them.

    Ctrl-C loses nothing: the same command goes on where it was.
    """
    from forerun.cli import console
    from forerun.drafting.vocabulary import fingerprint
    from forerun.hub.names import name_of
    from forerun.hub.prompt_sets import read
    from forerun.lab.commands.train_table import fill, number
    from forerun.lab.train import replies, sources
    from forerun.lab.train.answers import default_path, kept, open_store

    num_tokens, wanted = number(tokens), read(prompts)
    source = sources.of_prompts(prompts, licence)
    llm = opt.load(config)
    name = name_of(llm.path)
    path = answers or default_path(name)
    store = open_store(name, fingerprint(llm.tokenizer), path)
    sources.note(path, source)
    if unknown := source.licences.get(sources.UNKNOWN):
        console.stderr().print(
            f"{unknown} prompts have no licence: a field 'license' of each or --licence says it",
            style="dim",
        )
    fill(llm, wanted, store, num_tokens)
    found = replies.of_store(store)
    num_replies, num_kept = len(store.results), len(found)
    num_made = sum(len(answer) for _, answer in kept(store))
    if as_json:
        counts = {"replies": num_replies, "tokens": num_made, "kept": num_kept}
        console.print_json({"answers": str(path), "model": name, **counts})
        return
    console.report().print(
        f"{path}: {num_replies} replies, {num_made} tokens; {num_replies - num_kept} are loops, too short or came twice"
    )
