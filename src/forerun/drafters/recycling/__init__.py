"""Recycling: guess what the target itself found likely after the same few tokens.

Every verified row has the target's next-token distribution, also where the guess was wrong. Its likeliest tokens are
stored by the last 1 to `order` tokens before them, in a table of fixed size; before anything was learned there is a
file made of the target's earlier answers (`forerun train table`), or of replies that ship. Longer contexts correct
shorter ones, and earlier occurrences of the same tokens, in this text or another output, correct both.
The tree grows best first, so it fills the rows that a pass verifies for nearly nothing. Each node's confidence is its
expected probability, given the sampler's noise where the request samples.

Source: Token Recycling (arXiv 2408.08696), which keeps the tokens after a single token as last seen, without
probabilities, and starts empty; the look-up of repeats is SuffixDecoding's (arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.core.errors import ConfigError, check_least
from forerun.core.paths import expanded
from forerun.core.types import EMPTY_DRAFT, Draft, Features, Outcome, Seq
from forerun.drafters.base.contract import (
    Drafter,
    DrafterBytes,
    Method,
    Target,
    TreeSize,
)
from forerun.drafters.base.ngram.texts import Texts
from forerun.drafters.base.ngram.token_table import NUM_LIVE
from forerun.drafters.base.tree_noise import noise_below
from forerun.drafters.base.vocabulary import Vocabulary, fingerprint
from forerun.drafters.recycling import shared_replies, table_file
from forerun.hub.names import name_of
from forerun.model.kernels import native

if TYPE_CHECKING:
    from forerun._native import FileTable, TextNGramModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How far to look back, how much to guess, how much to remember."""

    table: str = "auto"
    """A file of `forerun train table`; auto takes the one made for this tokenizer, or has one made of replies that
    ship; none starts with nothing."""
    order: int = 4
    """Last tokens that are a context of the table, at most."""
    num_draft: int | None = None
    """Nodes of a tree at most; none: as many as pay, up to 15; 7 without the controller or within a memory budget."""
    min_chance: float | None = None
    """Probability that a node is reached, at least; none: 0.02, or 0.1 where `num_draft` is 7."""
    table_mb: float = 16.0
    """Size of what is learned while requests run, in MB."""
    max_depth: int = 64
    """Longest run of last tokens that is looked for in texts."""
    shared_tokens: int = 100_000
    """Tokens of outputs searched for other requests, oldest forgotten first; 0 shares none."""

    def __post_init__(self) -> None:
        num_draft, min_chance = self.tree_size
        check_least("num_draft", num_draft, 1)
        for name, least in (("order", 1), ("max_depth", 1), ("shared_tokens", 0)):
            check_least(name, getattr(self, name), least)
        if not 0 < min_chance <= 1:
            raise ConfigError(f"min_chance must be above 0 and at most 1, got {min_chance}")
        if not 0 < self.table_mb <= 65536:
            raise ConfigError(f"table_mb must be above 0 and at most 65536, got {self.table_mb}")
        if (path := self.table_path) is not None:
            table_file.read_header(path)  # a wrong one is refused before a model is loaded

    @property
    def tree_size(self) -> TreeSize:
        """Return where trees end."""
        return TreeSize.given(self.num_draft, self.min_chance)

    @property
    def table_path(self) -> Path | None:
        """Return the file that is named; None for auto and none."""
        return None if self.table in ("auto", "none") else expanded(self.table)


def build(options: Options, target: Target) -> Recycling:
    """Build a drafter that learns from the target's rows."""
    vocabulary, path, table = target.vocabulary, options.table_path, None
    if path is not None:
        if vocabulary is None:
            raise ConfigError(f"table={path} is one of a tokenizer, and the target has none")
        table = table_file.load(path, vocabulary)
    elif options.table == "auto" and vocabulary is not None:
        name = None if target.path is None else name_of(target.path)
        table = table_file.load_known(vocabulary, name)
    drafter = Recycling(options, table)
    if options.table == "auto" and table is None and target.encode and vocabulary is not None:
        ours = fingerprint(vocabulary)
        path = shared_replies.make_meanwhile(target.encode, ours, vocabulary.vocab_size)
        drafter.await_table(path, vocabulary)
    return drafter


def example(target: Target) -> Options:
    """Return options with so little memory that entries are soon dropped."""
    return Options(table="none", table_mb=0.01, shared_tokens=512)


def smaller(options: Options) -> Options | None:
    """Keep a quarter of the table and of the texts, until 1 MB is left."""
    if options.table_mb <= 1:
        return None
    table_mb, shared_tokens = max(1.0, options.table_mb / 4), options.shared_tokens // 4
    return replace(options, table_mb=table_mb, shared_tokens=shared_tokens)


def bundled_for(target: Target) -> bool:
    """Tell whether there is a table for the target's tokenizer."""
    return target.vocabulary is not None and bool(
        table_file.fitting_tables(target.vocabulary, None)
    )


METHOD = Method(
    bundled_for=bundled_for,
    smaller=smaller,
    example=example,
    grids={"num_draft": (3, 5, 7, 9, 11, 15), "min_chance": (0.01, 0.02, 0.05, 0.1)},
)


class Recycling(Drafter):
    """Trees of the target's own next tokens. Raises LoadError where the native library is not there."""

    features = Features(top_k=NUM_LIVE)
    gives_ngrams = True

    def __init__(self, options: Options, table: FileTable | None) -> None:
        self.options, self.table = options, table
        self.max_nodes, self._min_chance = options.tree_size
        native.require()
        from forerun import _native

        self.live = _native.LiveTable(options.order, round(options.table_mb * 1e6))
        self.texts = Texts(options.max_depth, options.shared_tokens)
        self._awaited: tuple[Path, Vocabulary] | None = None

    def await_table(self, path: Path, vocabulary: Vocabulary) -> None:
        """Load the table at `path`, which is being made, when a sequence begins after it was written."""
        self._awaited = path, vocabulary

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Index the sequence; the prompt's last row is the first to learn from."""
        if self._awaited is not None and self._awaited[0].exists():
            self.table, self._awaited = table_file.load_known(self._awaited[1], None), None
        self.texts.begin(seq, len(outcome.emitted))
        self.observe([seq], [EMPTY_DRAFT], [outcome])

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence, best first, by the tables, this text and other outputs together."""
        from forerun import _native

        trees = _native.grow_trees(
            self.texts.indexes(seqs),
            self.texts.shared,
            self.table,
            self.live,
            [min(budget, self.max_nodes) for budget in budgets],
            self._min_chance,
            [noise_below(seq) for seq in seqs],
        )
        return [Draft(*tree) for tree in trees]

    def ngram_model(self, seqs: Sequence[Seq]) -> TextNGramModel:
        """Return the n-gram model of the tables, each text and other outputs, for a network to draft with."""
        from forerun import _native

        indexes = self.texts.indexes(seqs)
        return _native.TextNGramModel(indexes, self.texts.shared, self.table, self.live)

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Learn from every row, also those below a rejected node."""
        order, trees = self.options.order, []
        for seq, draft, outcome in zip(seqs, drafts, outcomes, strict=True):
            assert outcome.top is not None, "asked for by `features`"
            stop = len(seq.tokens) - len(outcome.emitted)
            tail = seq.tokens[max(0, stop - order) : stop]
            trees.append((tail, draft.tokens, draft.parents, outcome.top))
        self.live.learn_trees(trees)

    def end(self, seq: Seq) -> None:
        """Drop the sequence's own index; its output stays shared."""
        self.texts.end(seq)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the tables, the full shared index, and those of full sequences."""
        tables = (self.live, *([] if self.table is None else [self.table]))
        nbytes = sum(t.__sizeof__() for t in tables) + self.texts.nbytes(num_seqs, max_len)
        return DrafterBytes(tables=nbytes)
