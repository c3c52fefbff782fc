"""`forerun train table`: a table of a model's next tokens, for the drafter `recycling`."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.lab.commands import _options as shared
from forerun.lab.commands._training import count_of
from forerun.lab.output import Columns, publish, show_table, writing
from forerun.system import files

MAX_MB = 4000


@opt.command()
@opt.engine(max_num_seqs=16)
@shared.prompt_file("--prompts")
@shared.answer_tokens("200k")
@click.option("--size-mb", default=8.0, help="Size of the table, at most.")
@click.option("--order", default=4, help="Last tokens of a context, at most.")
@click.option("-o", "--out", type=opt.PATH, help="The table; default: where drafters find it.")
@shared.kept_answers
@opt.as_json
def command(
    config: EngineConfig,
    prompts: str,
    tokens: str,
    size_mb: float,
    order: int,
    out: Path | None,
    answers: Path | None,
    as_json: bool,
) -> None:
    """Let the model answer prompts, and make a table of the tokens that follow its last few.

    The drafter `recycling` guesses from it before it has learned anything. Ctrl-C loses nothing: the same command
    goes on where it was.
    """
    from forerun.cli import tables
    from forerun.drafters.base.ngram import counting
    from forerun.drafters.recycling import table_file
    from forerun.hub.names import name_of
    from forerun.hub.prompt_sets import read
    from forerun.lab.train import answers as train_answers
    from forerun.lab.train import table

    num_tokens = count_of("--tokens", tokens)
    opt.check_least("order", order, 1)
    if not 0.01 <= size_mb <= MAX_MB:
        raise ConfigError(f"--size-mb must be from 0.01 to {MAX_MB}, got {size_mb:g}")
    if out is not None:  # hours of answers should not end with a table that cannot be written
        check_place(out)
    wanted = read(prompts)
    llm = opt.load(config)
    name = name_of(llm.path)
    out = out or table_file.tables_dir() / f"{name}{table_file.SUFFIX}"
    store = train_answers.fill(
        llm, wanted, answers or out.with_suffix(".answers.jsonl"), num_tokens
    )
    texts = [*train_answers.answers_in(store)]
    token_nbytes = counting.id_nbytes(llm.model.config.vocab_size)
    figures = table.measure(texts, order, token_nbytes, size_mb, table_file.HEAD_NBYTES)
    made = counting.make(texts, order, round(size_mb * 1e6) - table_file.HEAD_NBYTES, token_nbytes)
    with writing(out):
        table_file.save(out, made, model=name, vocabulary=str(store.origin["vocabulary"]))
    document = {"table": str(out), "contexts": made.num_contexts, "nbytes": made.nbytes}
    document |= {"tokens": made.num_tokens, "sizes": figures}

    def show() -> None:
        columns: Columns = {"MB": ("mb", 2), "contexts": "contexts"}
        show_table(figures, {**columns, "tokens per pass (tau)": ("tau", 3)}, num_left=0)
        tables.report().print(f"{out}: {made.num_contexts} contexts, {made.nbytes / 1e6:.2f} MB")

    publish({**store.origin, **document}, show, as_json=as_json)


def check_place(out: Path) -> None:
    """Make the folder of a file. Raises ForerunError if that cannot be, or the file is a folder."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name a file, such as {out / 'model.table'}")
    with writing(out):
        files.make_folder(out.parent)
