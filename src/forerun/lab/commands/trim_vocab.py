"""`forerun trim-vocab`: cut a draft's head to the tokens that its target generates most."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish


@opt.command()
@opt.engine(
    without=(*opt.DRAFTER, "draft_budget", "controller", "learn", "max_num_seqs", "prefill_chunk"),
    drafter="none",
    controller=False,
    max_num_seqs=1,
)
@click.option("--draft", required=True, help="The draft model: a path, a known or a hub name.")
@click.option("-o", "--out", required=True, type=opt.PATH, help="The folder of the trimmed draft.")
@click.option(
    "--answers",
    type=opt.PATH,
    help="Answers of the model, as forerun train table keeps them; default: those it made.",
)
@click.option("--texts", type=opt.PATH, help="Plain text to count as well, or instead.")
@click.option("--size", default="auto", help="Tokens to keep; auto measures what is fastest.")
@shared.prompt_file("--prompts")
@click.option("--limit", default=6, help="Prompts to measure on, evenly over the categories.")
@click.option("-n", "--max-tokens", default=48, help="New tokens a prompt, at most.")
@click.option("--num-draft", default=3, help="Tokens the draft guesses a pass, to measure with.")
@opt.as_json
def command(
    config: EngineConfig,
    draft: str,
    out: Path,
    answers: Path | None,
    texts: Path | None,
    size: str,
    prompts: str,
    limit: int,
    max_tokens: int,
    num_draft: int,
    as_json: bool,
) -> None:
    """Cut a draft model's head to the tokens that the model generates most, and measure what it brings.

    Give the folder as draft: -d draft_model:model=FOLDER. Answers stay the model's own; a token that was cut is only
    not guessed, unless the text has it already.
    """
    from forerun.cli import tables
    from forerun.drafters.base import trimmed
    from forerun.drafters.base.draft_head import chosen
    from forerun.drafters.draft_model import Options, load
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.train import trim

    if size != "auto" and (not size.isdecimal() or int(size) < 1):
        raise ConfigError(f"--size must be auto or a number from 1, got {size!r}")
    wanted = None if size == "auto" else int(size)
    for name, number in (("limit", limit), ("max-tokens", max_tokens), ("num-draft", num_draft)):
        opt.check_least(f"--{name}", number, 1)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: name a folder")
    if trimmed.is_one(draft):
        raise ConfigError(f"{draft} is trimmed already: give the model that it was made of")
    llm = opt.load(config)
    small = load(Options(model=draft, num_draft=num_draft), llm.target())
    vocab_size = min(small.config.vocab_size, llm.model.config.vocab_size)
    needed = trim.needed(llm, vocab_size, wanted)
    counts = trim.counted(llm, answers, texts, vocab_size)
    order, figures = trim.ranked(counts), []
    if wanted is None:
        sizes = [n for n in trim.SIZES if len(needed) < n < vocab_size]
        lists = {n: chosen(order, needed, n) for n in sizes}
        chosen_prompts = workload.choose(read(prompts), limit)
        limits = {"max_tokens": max_tokens, "num_draft": num_draft}
        figures = trim.measure(llm, small, counts, lists, chosen_prompts, **limits)
        wanted = trim.fastest(figures, out)
    made = trim.save(llm, draft, out, counts, chosen(order, needed, wanted))

    def show() -> None:
        if figures:
            trim.show(figures)
        tables.report().print(
            f"{out}: {made['draft_vocab_size']} of {made['vocab_size']} tokens, "
            f"{made['said']:.2%} of the {made['num_tokens']} counted"
        )

    publish({**made, "sizes": figures}, show, as_json=as_json)
