"""`forerun train table`: a table of what a model says next, for the drafter `recycling`."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forerun.core.types import TaskPrompt
    from forerun.lab.store import Store
    from forerun.lab.train.table import Text
    from forerun.llm import LLM

SIZES_MB = (0.5, 1.0, 2.0, 4.0, 8.0)
MAX_MB = 4000
HELD_OUT = 20  # the answers to one of so many prompts are not counted, to measure on


@opt.engine(max_num_seqs=16)
def command(
    config: EngineConfig,
    prompts: str = typer.Option("builtin", help="A file of prompts, JSONL or one a line; builtin."),
    tokens: str = typer.Option("200k", help="Tokens of answers to make, such as 200k or 5M."),
    size_mb: float = typer.Option(8.0, help="Size of the table, at most."),
    order: int = typer.Option(4, help="Last tokens of a context, at most."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="The table; default: where drafters find it."
    ),
    answers: Path | None = typer.Option(
        None, help="JSONL of the answers; what it holds is not made again."
    ),
    as_json: opt.Json = False,
) -> None:
    """Let the model answer prompts, and make a table of what it says after its last few tokens.

    The drafter `recycling` guesses from it before it has learned anything. Ctrl-C loses nothing: the same command
    goes on where it was.
    """
    from forerun.cli import console
    from forerun.drafters.recycling import table_file
    from forerun.drafting.vocabulary import fingerprint
    from forerun.hub.names import name_of
    from forerun.hub.prompt_sets import read
    from forerun.lab.train import table
    from forerun.lab.train.answers import kept, open_store

    num_tokens = number(tokens)
    opt.check_least("order", order, 1)
    if not 0.01 <= size_mb <= MAX_MB:
        raise ConfigError(f"--size-mb must be from 0.01 to {MAX_MB}, got {size_mb:g}")
    if out is not None:
        _check_place(out)
    wanted = read(prompts)
    llm = opt.load(config)
    name = name_of(llm.path)
    out = out or table_file.tables_dir() / f"{name}{table_file.SUFFIX}"
    answers = answers or out.with_suffix(".answers.jsonl")
    vocabulary = fingerprint(llm.tokenizer)
    store = open_store(name, vocabulary, answers)
    fill(llm, wanted, store, num_tokens)
    texts = [*kept(store)]
    token_nbytes = 2 if llm.model.config.vocab_size <= 1 << 16 else 3
    figures = _measure(texts, order, token_nbytes, size_mb)
    made = table.make(texts, order, _nbytes(size_mb), token_nbytes)
    try:
        table_file.save(out, made, model=name, vocabulary=vocabulary)
    except OSError as error:
        raise ForerunError(f"{out} cannot be written: {error}") from error
    if as_json:
        sizes = [{"mb": mb, "contexts": n, "tau": tau} for mb, n, tau in figures]
        document = {"table": str(out), "contexts": made.num_contexts, "nbytes": made.nbytes}
        document |= {"tokens": made.num_tokens, "sizes": sizes}
        console.print_json({**store.origin, **document})
        return
    columns = ("MB", "contexts", "tokens per pass (tau)")
    lines = [(f"{mb:.2f}", n, f"{tau:.3f}") for mb, n, tau in figures]
    report = console.report()
    report.print(console.table(columns, lines, num_left=0))
    report.print(f"{out}: {made.num_contexts} contexts, {made.nbytes / 1e6:.2f} MB")


def number(text: str) -> int:
    """A count such as 300, 200k or 5M."""
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        value = round(float(digits) * scale)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise ConfigError(f"--tokens must be a count such as 200k or 5M, got {text!r}")
    return value


def _nbytes(size_mb: float) -> int:
    """What the contexts may take of a file of that size."""
    from forerun.drafters.recycling.table_file import HEAD_NBYTES

    return round(size_mb * 1e6) - HEAD_NBYTES


def _check_place(out: Path) -> None:
    """Hours of answers should not end with a table that cannot be written."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name a file, such as {out / 'model.table'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error}") from error


def fill(llm: LLM, prompts: Iterable[TaskPrompt], store: Store, num_tokens: int) -> None:
    """Fill the store, with the time left on stderr in a terminal. Ctrl-C says how far it came."""
    from forerun.cli import console
    from forerun.lab.train.answers import generate

    def encode(conversation: Sequence[Sequence[int] | str]) -> Sequence[int]:
        texts = [
            said if isinstance(said, str) else llm.tokenizer.decode(said) for said in conversation
        ]
        if llm.tokenizer.chat_template is None:
            return llm.encode("".join(texts))
        roles = cycle(("user", "assistant"))
        return llm.encode([{"role": next(roles), "content": text} for text in texts])

    done = 0
    try:
        with console.counter("answering", num_tokens) as show:
            for done in generate(llm.loop, encode, prompts, store, num_tokens):
                show(done)
    except KeyboardInterrupt:
        console.stderr().print(
            f"{done} of {num_tokens} tokens are in {store.path}; the same command goes on",
            style="dim",
        )
        raise
    if done < num_tokens:
        raise ConfigError(
            "no prompt fits into the model's context with room for an answer: give shorter ones, or raise "
            "--max-model-len"
        )


def _measure(
    texts: Sequence[Text], order: int, token_nbytes: int, most_mb: float
) -> list[tuple[float, int, float]]:
    """Size, contexts and tau on answers that were not counted, of tables up to the size that is wanted."""
    from forerun.drafting.ngram.token_table import new_file_table
    from forerun.lab.train import table

    is_held_out = [not hash(prompt) % HELD_OUT for prompt, _ in texts]
    if all(is_held_out) or not any(is_held_out):  # few prompts
        is_held_out = [not i % HELD_OUT for i in range(len(texts))]
    held_out = [text for text, held in zip(texts, is_held_out, strict=True) if held]
    others = [text for text, held in zip(texts, is_held_out, strict=True) if not held]
    figures = [(0.0, 0, 1.0)]
    if not others:
        return figures
    counted = table.count_contexts(others, order)
    for mb in sorted({*(mb for mb in SIZES_MB if mb < most_mb), most_mb}):
        made = table.cut(counted, _nbytes(mb), token_nbytes)
        if made.num_contexts == figures[-1][1]:
            break
        file = new_file_table(made.offsets, made.data, token_nbytes)
        tau = table.tokens_a_pass(held_out, file, order)
        figures.append((made.nbytes / 1e6, made.num_contexts, tau))
    return figures[1:]
