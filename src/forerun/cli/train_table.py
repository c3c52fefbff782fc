"""`forerun train table`: a table of what a model says next, for the drafter `recycling`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forerun.core.store import Store
    from forerun.core.types import TaskPrompt
    from forerun.llm import LLM
    from forerun.train.table import Text

SIZES_MB = (0.5, 1.0, 2.0, 4.0, 8.0)
HELD_OUT = 20  # every so many answers are not counted, to measure on


@opt.engine(max_num_seqs=16)
def command(
    config: EngineConfig,
    prompts: Annotated[
        str, typer.Option("--prompts", help="A file of prompts, JSONL or one a line; builtin.")
    ] = "builtin",
    tokens: Annotated[
        str, typer.Option("--tokens", help="Tokens of answers to make, such as 200k or 5M.")
    ] = "200k",
    size_mb: Annotated[float, typer.Option("--size-mb", help="Size of the table, at most.")] = 8.0,
    order: Annotated[int, typer.Option("--order", help="Last tokens of a context, at most.")] = 4,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The table; default: where drafters find it."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option("--answers", help="JSONL of the answers; what it holds is not made again."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Let the model answer prompts, and make a table of what it says after its last few tokens.

    The drafter `recycling` guesses from it before it has learned anything. Ctrl-C loses nothing: the same command
    goes on where it was.
    """
    from forerun.cli import _console as console
    from forerun.core.store import Store
    from forerun.drafters import _table_file
    from forerun.eval.prompts import read
    from forerun.train import table
    from forerun.train.answers import MAX_TOKENS, kept

    num_tokens = _number(tokens)
    opt.check_least("order", order, 1)
    wanted = read(prompts)
    llm = opt.load(config)
    name = llm.path.stem
    out = out or _table_file.tables_dir() / f"{name}{_table_file.SUFFIX}"
    answers = answers or out.with_suffix(".answers.jsonl")
    vocabulary = _table_file.fingerprint(llm.tokenizer)
    origin = {"model": name, "vocabulary": vocabulary, "max_tokens": MAX_TOKENS}
    store = Store(origin, answers)
    _answer(llm, wanted, store, num_tokens)
    texts = [(answer.prompt, answer.tokens) for answer in kept(store)]
    token_nbytes = 2 if llm.model.config.vocab_size <= 1 << 16 else 3
    figures = _measure(texts, order, token_nbytes, size_mb)
    columns = ("MB", "contexts", "tokens per pass (tau)")
    lines = [(f"{mb:.2f}", n, f"{tau:.3f}") for mb, n, tau in figures]
    console.stdout().print(console.table(columns, lines, num_left=0))
    made = table.make(texts, order, round(size_mb * 1e6), token_nbytes)
    try:
        _table_file.save(out, made, model=name, vocabulary=vocabulary)
    except OSError as error:
        raise ForerunError(f"{out} cannot be written: {error}") from error
    console.stdout().print(f"{out}: {made.num_contexts} contexts, {made.nbytes / 1e6:.2f} MB")
    if as_json:
        sizes = [{"mb": mb, "contexts": n, "tau": tau} for mb, n, tau in figures]
        document = {"table": str(out), "contexts": made.num_contexts, "nbytes": made.nbytes}
        console.print_json(origin | document | {"tokens": made.num_tokens, "sizes": sizes})


def _number(text: str) -> int:
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


def _answer(llm: LLM, prompts: Iterable[TaskPrompt], store: Store, num_tokens: int) -> None:
    """Fill the store, with the time left on stderr in a terminal. Ctrl-C says how far it came."""
    from forerun.cli import _console as console
    from forerun.train.answers import generate

    def encode(text: str) -> Sequence[int]:
        template = llm.tokenizer.chat_template
        return llm.encode(text if template is None else [{"role": "user", "content": text}])

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
        raise ConfigError("no prompt fits into the model's context with room for an answer")


def _measure(
    texts: Sequence[Text], order: int, token_nbytes: int, most_mb: float
) -> list[tuple[float, int, float]]:
    """Size, contexts and tau on answers that were not counted, of tables up to the size that is wanted."""
    from forerun.drafters._token_table import new_file_table
    from forerun.train import table

    held_out, others = texts[::HELD_OUT], [t for i, t in enumerate(texts) if i % HELD_OUT]
    figures = [(0.0, 0, 1.0)]
    if not others:
        return figures
    levels = table.count_contexts(others, order)
    for mb in sorted({*(mb for mb in SIZES_MB if mb < most_mb), most_mb}):
        made = table.cut(levels, round(mb * 1e6), token_nbytes)
        if made.num_contexts == figures[-1][1]:
            break
        file = new_file_table(made.offsets, made.data, token_nbytes)
        tau = table.tokens_a_pass(held_out, file, order)
        figures.append((made.nbytes / 1e6, made.num_contexts, tau))
    return figures[1:]
