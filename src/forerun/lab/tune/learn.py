"""The table that `forerun tune` makes: of a model's own answers, counted with the replies that ship."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.drafters.base.ngram import counting
from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.names import name_of
from forerun.lab.bench.run import resolved
from forerun.lab.output import writing
from forerun.lab.store import Store
from forerun.lab.train.answers import answers_in, default_path, fill
from forerun.lab.train.replies import prompt_of
from forerun.lab.tune import network
from forerun.llm import LLM
from forerun.system import files

OWN_WEIGHT = 4
"""Times a model's own answer counts as one of another's (dev/LOG.md)."""
SIZE_MB = 8.0


@dataclass(frozen=True, slots=True)
class Made:
    """A table, and what it was made of."""

    path: Path
    """Where it lies until it is installed."""
    answers: Path
    num_tokens: int
    """Of the model's own answers."""
    num_contexts: int


def make(
    llm: LLM, prompts: Sequence[TaskPrompt], left_out: Collection[str], num_tokens: int
) -> Made:
    """Let the model answer prompts, and write its table; answers to those left out, by id, do not count.

    After Ctrl-C a note tells how far it came. Raises ForerunError.
    """
    from forerun.drafters.recycling import shared_replies, table_file

    name, vocabulary = name_of(llm.path), fingerprint(llm.tokenizer)
    path = new_path(llm)
    with writing(path):
        files.make_folder(path.parent)
    store = fill(llm, prompts, default_path(name), num_tokens)
    own_texts = _texts(store, left_out)
    others = shared_replies.texts(_encoder(llm))
    id_nbytes = counting.id_nbytes(llm.model.config.vocab_size)
    nbytes = round(SIZE_MB * 1e6) - table_file.HEAD_NBYTES
    table = counting.make(
        [*others, *own_texts * OWN_WEIGHT], shared_replies.ORDER, nbytes, id_nbytes
    )
    with writing(path):
        table_file.save(path, table, model=name, vocabulary=vocabulary)
    num_own = sum(len(answer) for _, answer in own_texts)
    return Made(path, default_path(name), num_own, table.num_contexts)


def path_of(llm: LLM) -> Path:
    """Return where drafters look for a model's own table."""
    from forerun.drafters.recycling import table_file

    return table_file.tables_dir() / f"{name_of(llm.path)}{table_file.SUFFIX}"


def new_path(llm: LLM) -> Path:
    """Return where a table lies that is not installed: no drafter looks there."""
    return path_of(llm).with_suffix(".new")


def install(llm: LLM, made: Made) -> Path:
    """Put a table in the place of what is there, and return that. Raises ForerunError."""
    with writing(path_of(llm)):
        os.replace(made.path, path_of(llm))
    return path_of(llm)


@dataclass(frozen=True, slots=True)
class Drafters:
    """The default drafter by name, without the model's own network: with each of three tables."""

    default: str
    """With another's table."""
    before: str
    """The same as `default` where the model has no table of its own."""
    new: str

    @property
    def has_own(self) -> bool:
        """Whether the model has a table of its own."""
        return self.before != self.default


def drafters(llm: LLM) -> Drafters:
    """Name the default drafter with each table. Raises ForerunError."""
    from forerun.drafters.recycling import shared_replies, table_file

    auto = resolved(llm, "auto")
    if "recycling" not in auto:
        raise ConfigError(
            f"tune makes a table for recycling, and the default drafter of this model is {auto}: -d looks for the "
            "best setting of another"
        )
    own_table, vocabulary = path_of(llm), fingerprint(llm.tokenizer)
    others = [path for path in table_file.fitting_tables(llm.tokenizer, None) if path != own_table]
    if not others:
        with writing(table_file.tables_dir()):
            shared_replies.make(_encoder(llm), vocabulary, llm.tokenizer.vocab_size)
        others = [shared_replies.path_of(vocabulary)]
    if network.own_folder(llm).exists():
        other = network.other(llm)
        auto = auto.replace(f"{network.KIND}++", f"{network.KIND}:model={other}++" if other else "")
    paths = (others[0], own_table if own_table.exists() else others[0], new_path(llm))
    return Drafters(*(with_table(auto, path) for path in paths))


def with_table(drafter: str, table: Path) -> str:
    """Name the default drafter with a table."""
    return drafter.replace("recycling", f"recycling:table={table}")


def _encoder(llm: LLM) -> Callable[[str], list[int]]:
    """Return what reads a reply by itself."""
    return partial(llm.tokenizer.encode, special=False, bos=False)


def _texts(store: Store, left_out: Collection[str]) -> list[counting.Text]:
    """The answers of a store to all prompts but some."""
    ids = map(prompt_of, store.results)
    return [text for name, text in zip(ids, answers_in(store), strict=True) if name not in left_out]
