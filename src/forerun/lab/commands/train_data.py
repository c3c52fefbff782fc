"""`forerun train data`: the model's replies to many prompts, which tables and drafters are made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _options as shared
from forerun.lab.commands._training import count_of
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.llm import LLM


@opt.command()
@opt.engine(max_num_seqs=16)
@shared.prompt_file("--prompts")
@shared.answer_tokens("1M")
@shared.kept_answers
@click.option(
    "--states-gb",
    default=0.0,
    help="Keep the model's states too, up to so many GB: train drafter then reads nothing again.",
)
@click.option("--licence", help="Of the prompts whose lines have no field 'license'.")
@opt.as_json
def command(
    config: EngineConfig,
    prompts: str,
    tokens: str,
    answers: Path | None,
    states_gb: float,
    licence: str | None,
    as_json: bool,
) -> None:
    """Let the model answer prompts, for forerun train drafter and train table, which share them.

    Ctrl-C loses nothing: the same command goes on where it was.
    """
    from forerun.cli import console, tables
    from forerun.drafters.base.vocabulary import fingerprint
    from forerun.hub.names import name_of
    from forerun.hub.prompt_sets import read
    from forerun.lab.train import replies, sources
    from forerun.lab.train.answers import answers_in, default_path, fill, open_store

    num_tokens, wanted = count_of("--tokens", tokens), read(prompts)
    source = sources.of_prompts(prompts, licence)
    llm = opt.load(config)
    name = name_of(llm.path)
    path = answers or default_path(name)
    open_store(name, fingerprint(llm.tokenizer), path)  # one that cannot be used has no sources
    sources.note(path, source)
    if unknown := source.licences.get(sources.UNKNOWN):
        console.note(
            f"{unknown} prompts have no licence: a field 'license' of each or --licence says it",
            dim=True,
        )
    with _states_kept(llm, path, states_gb):
        store = fill(llm, wanted, path, num_tokens)
    num_replies, num_kept = len(store.results), len(replies.of_store(store))
    num_made = sum(len(answer) for _, answer in answers_in(store))
    counts = {"replies": num_replies, "tokens": num_made, "kept": num_kept}
    summary = f"{path}: {num_replies} replies, {num_made} tokens; "
    summary += f"{num_replies - num_kept} are loops, too short or came twice"
    publish(
        {"answers": str(path), "model": name, **counts},
        lambda: tables.report().print(summary),
        as_json=as_json,
    )


def _states_kept(llm: LLM, answers: Path, states_gb: float) -> AbstractContextManager[None]:
    """Keep states, which takes torch, if any are wanted."""
    if not states_gb:
        return nullcontext()
    from forerun.lab.train.session import states_kept

    return states_kept(llm, answers, states_gb)
