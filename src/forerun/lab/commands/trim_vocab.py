"""`forerun trim-vocab`: cut a draft's head to the tokens that its target says most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table
    from torch import Tensor

    from forerun.engine.engine import Engine
    from forerun.lab.train.trim import Counts, Figures
    from forerun.llm import LLM
    from forerun.model.model import Model


@opt.engine(
    without=(*opt.DRAFTER, "draft_budget", "controller", "learn", "max_num_seqs", "prefill_chunk"),
    drafter="none",
    controller=False,
    max_num_seqs=1,
)
def command(
    config: EngineConfig,
    draft: str = typer.Option(..., help="The draft model: a path, a known or a hub name."),
    out: Path = typer.Option(..., "-o", "--out", help="The folder of the trimmed draft."),
    answers: Path | None = typer.Option(
        None,
        help="Answers of the model, as forerun train table keeps them; default: those it made.",
    ),
    texts: Path | None = typer.Option(None, help="Plain text to count as well, or instead."),
    size: str = typer.Option("auto", help="Tokens to keep; auto measures what is fastest."),
    prompts: str = typer.Option("builtin", help="A file of prompts to measure on, or builtin."),
    limit: int = typer.Option(6, help="Prompts to measure on, evenly over the categories."),
    max_tokens: int = typer.Option(48, "-n", "--max-tokens", help="New tokens a prompt, at most."),
    num_draft: int = typer.Option(3, help="Tokens the draft guesses a pass, to measure with."),
    as_json: opt.Json = False,
) -> None:
    """Cut a draft model's head to the tokens that the model says most, and measure what it brings.

    Give the folder as draft: -d draft_model:model=FOLDER. Answers stay the model's own; a token that was cut is only
    not guessed, unless the text has said it already.
    """
    from forerun.drafters.draft_model import Options, load, trimmed
    from forerun.drafters.draft_model.head import chosen
    from forerun.lab.train import trim

    wanted = _wanted(size)
    for name, number in (("limit", limit), ("max-tokens", max_tokens), ("num-draft", num_draft)):
        opt.check_least(f"--{name}", number, 1)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: name a folder")
    if trimmed.is_one(draft):
        raise ConfigError(f"{draft} is trimmed already: give the model that it was made of")
    llm = opt.load(config)
    small = load(Options(model=draft, num_draft=num_draft), llm.target())
    vocab_size = min(small.config.vocab_size, llm.model.config.vocab_size)
    needed = _needed(llm, vocab_size, wanted)
    counts = _counts(llm, vocab_size, answers, texts)
    order, figures = trim.ranked(counts), []
    if wanted is None:
        sizes = [n for n in trim.SIZES if len(needed) < n < vocab_size]
        lists = {n: chosen(order, needed, n) for n in sizes}
        figures = _measure(llm, small, counts, lists, prompts, (limit, max_tokens, num_draft))
        wanted = _fastest(figures, out)
    tokens = chosen(order, needed, wanted)
    _report(_save(llm, draft, out, counts, tokens), out, figures, as_json)


def _wanted(size: str) -> int | None:
    """The number of tokens to keep; None to measure it. Raises ConfigError."""
    if size == "auto":
        return None
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(f"--size must be auto or a number from 1, got {size!r}")
    return int(size)


def _needed(llm: LLM, vocab_size: int, wanted: int | None) -> list[int]:
    """The tokens that every list has. Raises ConfigError for a size that cannot be."""
    from forerun.drafters.draft_model.head import must_have

    needed = must_have(llm.tokenizer, vocab_size)
    if wanted is not None and wanted > vocab_size:
        raise ConfigError(
            f"--size {wanted} is more than the {vocab_size} tokens of the vocabulary: give fewer, or auto"
        )
    if wanted is not None and wanted < len(needed):
        raise ConfigError(
            f"--size {wanted} is too few: {len(needed)} tokens are bytes or marks, which every list has"
        )
    return needed


def _fastest(figures: Sequence[Figures], out: Path) -> int:
    """The size to take. Raises ConfigError if it is the whole head."""
    from forerun.cli import console

    size = max(figures, key=lambda each: each.gain).size
    if size is None:
        console.report().print(_table(figures))
        raise ConfigError(
            f"no list is faster than the whole head here, so {out} is not written: --size N writes one"
        )
    return size


def _save(llm: LLM, draft: str, out: Path, counts: Counts, tokens: Tensor) -> dict[str, object]:
    """Write the folder; what it says of itself, and which share of what was counted its tokens are."""
    from dataclasses import asdict

    from forerun.drafters.draft_model import trimmed
    from forerun.drafting.vocabulary import fingerprint
    from forerun.hub.names import name_of, resolve
    from forerun.lab.train import trim

    made = trimmed.TrimmedConfig(
        draft=str(resolve(draft).resolve()),
        target=name_of(llm.path),
        vocabulary=fingerprint(llm.tokenizer),
        vocab_size=len(counts),
        draft_vocab_size=len(tokens),
        num_tokens=int(counts.sum()),
    )
    try:
        trimmed.save(out, made, tokens)
    except OSError as error:
        raise ForerunError(f"{out} cannot be written: {error}") from error
    return {**asdict(made), "said": trim.coverage(counts, tokens)}


def _report(made: dict[str, object], out: Path, figures: Sequence[Figures], as_json: bool) -> None:
    from dataclasses import asdict

    from forerun.cli import console

    if as_json:
        console.print_json({**made, "sizes": [asdict(each) for each in figures]})
        return
    report = console.report()
    if figures:
        report.print(_table(figures))
    report.print(
        f"{out}: {made['draft_vocab_size']} of {made['vocab_size']} tokens, "
        f"{made['said']:.2%} of the {made['num_tokens']} counted"
    )


def _counts(llm: LLM, vocab_size: int, answers: Path | None, texts: Path | None) -> Counts:
    """How often the target says each token. Raises ConfigError where there is nothing to count."""
    from forerun.hub.names import name_of
    from forerun.lab.train import trim
    from forerun.lab.train.answers import default_path

    if answers is None and texts is None:
        name = name_of(llm.path)
        answers = default_path(name)
        if not answers.exists():
            raise ConfigError(
                f"there are no answers of {name} to count: forerun train table makes them, or give "
                "--answers or --texts"
            )
    counts = trim.count(_said(llm, answers, texts), vocab_size)
    if not counts.any():
        raise ConfigError(f"{answers or texts} holds no tokens to count")
    return counts


def _said(llm: LLM, answers: Path | None, texts: Path | None) -> Iterator[Sequence[int]]:
    from forerun.core.textfile import read_text
    from forerun.drafting.vocabulary import fingerprint
    from forerun.lab.store import Store, read
    from forerun.lab.train.answers import kept

    if answers is not None:
        origin, results = read(answers)
        if (theirs := origin.get("vocabulary")) != (ours := fingerprint(llm.tokenizer)):
            raise ConfigError(
                f"{answers} holds answers of another vocabulary ({theirs}, this model has {ours}): give "
                "this model's own"
            )
        store = Store(origin)  # in memory: the file may be growing
        store.path, store.results = answers, results
        yield from (said for _, said in kept(store))
    if texts is not None:
        for line in read_text(texts).splitlines(keepends=True):
            yield llm.tokenizer.encode(line, bos=False)


def _measure(
    llm: LLM,
    draft: Model,
    counts: Counts,
    lists: dict[int, Tensor],
    prompts: str,
    limits: tuple[int, int, int],
) -> list[Figures]:
    """The whole head and every list on the same prompts, in turn."""
    from functools import partial

    from forerun.cli import console
    from forerun.core.params import SamplingParams
    from forerun.drafters.draft_model import DraftModel, Options
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.bench.run import EngineSystem
    from forerun.lab.train import trim

    limit, max_tokens, num_draft = limits
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    chosen = workload.choose(read(prompts), limit)
    asked = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in chosen]
    target = llm.target()

    def new_engine(tokens: Tensor | None) -> Engine:
        vocab = "full" if tokens is None else "auto"
        options = Options(model="", num_draft=num_draft, draft_vocab=vocab)
        return llm.with_drafter(DraftModel(draft, options, target, tokens)).engine

    measured = []
    for size in (None, *lists):
        tokens = None if size is None else lists[size]
        system = EngineSystem(str(size), partial(new_engine, tokens), llm.tokenizer, params)
        system.restart(asked[0])
        measured.append(trim.TrimMeasured(system.answer, size, trim.coverage(counts, tokens)))
    with console.counter("measuring", trim.ROUNDS * len(asked) * len(measured)) as show:
        for done in trim.answer(measured, asked):
            show(done)
    return [
        each.figures(measured[0], trim.cost(draft.config, llm.model.config, each.size), num_draft)
        for each in measured
    ]


def _table(figures: Sequence[Figures]) -> Table:
    from forerun.cli import console

    columns = ("tokens", "said", "tau", "MBSU", "draft ms", "tok/s", "against all")
    lines = [
        (
            f.size or "all",
            f"{f.coverage:.2%}",
            f"{f.tau:.3f}",
            f"{f.mbsu:.3f}",
            f"{f.draft_ms:.2f}",
            f"{f.tok_s:.2f}",
            f"{f.gain:.3f}x",
        )
        for f in figures
    ]
    return console.table(columns, lines, num_left=0)
