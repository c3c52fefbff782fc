"""A smaller model guesses for a larger one: classic speculative decoding, as a chain or as a tree.

The draft has its own cache, whose blocks come out of the target's memory where that is limited, and
reads the text itself: whatever of `seq.tokens` its cache lacks is
fed before it guesses, be it a prompt, a token the target chose, or all that happened while the
sequence was preempted. Its tree grows level by level over scratch rows; the rows of accepted nodes
stay, so nothing is computed twice. It accepts nothing: `decoding.verify` does.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); trees: SpecInfer
(arXiv 2305.09781).

M rows whose logits are needed, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch
from forerun.core.errors import ConfigError
from forerun.core.types import Outcome, Seq
from forerun.drafters.draft_model import trimmed as trimmed_folder
from forerun.drafting.base import SELF, DrafterBytes, Method, Search, Target, as_given
from forerun.drafting.draft_builder import (
    BuilderOptions,
    DraftBuilder,
    ModelDrafter,
    Scores,
    new_rows,
)
from forerun.drafting.draft_head import DraftHead, OwnTokens, list_of
from forerun.drafting.vocabulary import vocabulary_difference
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.model import Model
from forerun.weights.rtn import Scheme

MAX_ROWS = 256
"""Rows fed in one pass: bounds the step's buffers when a long prompt is read."""
_GRIDS = {"num_draft": (1, 2, 3, 4, 5, 6, 8, 10, 12)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BuilderOptions):
    """Which draft, and how much it guesses."""

    model: str
    """The draft: a path, a known name or a Hugging Face name; self is the target's own file."""
    quant: Scheme = "none"
    """Round the draft's weights to int8 or int4; none takes them as stored."""
    head_bits: Literal[4, 8] | None = None
    """Round the draft's output head to so many bits."""
    draft_vocab: str = "auto"
    """Tokens it may guess besides the text's own: a number, full, or auto: 32768 of a large vocabulary."""

    def __post_init__(self) -> None:
        BuilderOptions.__post_init__(self)
        if self.draft_vocab not in ("auto", "full") and not self.list_size:
            raise ConfigError(
                f"draft_vocab must be auto, full or a number from 1, got {self.draft_vocab!r}"
            )

    @property
    def list_size(self) -> int:
        """Return the number that `draft_vocab` is, 0 if it is none."""
        return int(self.draft_vocab) if self.draft_vocab.isdecimal() else 0


def build(options: Options, target: Target) -> DraftModel:
    """Load the draft. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    if not trimmed_folder.is_one(options.model):
        return DraftModel(load(options, target), options, target)
    draft, tokens = trimmed_folder.load(options.model, target)
    return DraftModel(load(replace(options, model=draft), target), options, target, tokens)


def load(options: Options, target: Target) -> Model:
    """Load the draft, whole. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    model, vocabulary = target.load(options.model, quant=options.quant, head_bits=options.head_bits)
    known = target.vocabulary
    if known and vocabulary and (difference := vocabulary_difference(known, vocabulary)):
        raise ConfigError(
            f"'{options.model}' cannot draft for this model: {difference}; "
            "choose a draft of the same family"
        )
    return model


def example(target: Target) -> Options:
    """Name the target itself: `forerun check-drafter` has a relative of its tiny model for every name."""
    return Options(model=SELF)


def tune(target: Target, options: Options, search: Search) -> Options:
    """Search how many tokens a chain should have; a tree stays as given. The draft is named by its full path."""
    path = Path(options.model).expanduser()
    if path.exists():
        options = replace(options, model=str(path.resolve()))
    return search.climb(options, {} if options.branch else _GRIDS)


def smaller(options: Options) -> Options | None:
    """Round the draft's weights to int4."""
    return None if options.quant == "int4" else replace(options, quant="int4")


METHOD = Method(unshared=as_given, smaller=smaller, example=example, grids=_GRIDS, tune=tune)


@dataclass(slots=True)
class Slot:
    """A sequence's slot in the draft's cache, and the rows computed above those committed there."""

    index: int
    own: OwnTokens | None = None
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


class DraftModel(ModelDrafter):
    """Runs a model of its own, one slot a sequence."""

    def __init__(
        self, model: Model, options: Options, target: Target, listed: Ids | None = None
    ) -> None:
        """Take the model and, if its head is trimmed, the `listed` tokens, ascending."""
        super().__init__(options)
        self.model = model
        self.vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
        listed = _listed(options, target, self.vocab_size, listed)
        self.head = None if listed is None else DraftHead(model, self.vocab_size, listed)
        max_len = min(target.max_len, model.config.max_position)
        self.cache = model.new_cache(target.max_num_seqs, max_len, num_checkpoints=0)
        if target.cache is not None and target.cache.is_limited:
            self.cache.join(target.cache, self._let_go)
        self.kv_block_nbytes = self.cache.block_nbytes
        self._slots: dict[int, Slot] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Take a slot, if there is memory; the tokens are read when a draft is asked for."""
        self.end(seq)
        opened = self.cache.open(seq.tokens)
        if opened is not None:
            own = None if self.head is None else self.head.new_text()
            self._slots[seq.id] = Slot(opened[0], own)

    def end(self, seq: Seq) -> None:
        """Free the sequence's slot of the draft's cache."""
        slot = self._slots.pop(seq.id, None)
        if slot is not None:
            self.cache.close(slot.index, seq.tokens)

    def _let_go(self) -> bool:
        """Free the rows of the text begun last, which is not drafted for any more; False if there is none."""
        if not self._slots:
            return False
        _, slot = self._slots.popitem()
        self.cache.close(slot.index, ())
        return True

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count weights, keys and values, and recurrent states; copied rows of the head are weights."""
        per_row = math.ceil(self.cache.block_nbytes / BLOCK_ROWS)
        rows = blocks_of(min(max_len, self.cache.max_len)) * BLOCK_ROWS
        head = self.head.nbytes(num_seqs) if self.head else 0
        states = 0 if self.cache.states is None else self.cache.states.nbytes_of(num_seqs)
        return DrafterBytes(self.model.nbytes() + head, num_seqs * rows * per_row, states)

    def _start(self, seq: Seq, budget: int) -> DraftBuilder | None:
        """Commit the computed rows that were right, and line up the tokens the cache lacks."""
        slot = self._slots.get(seq.id)
        if slot is None:
            return None
        base = self.cache.length(slot.index)
        room = min(budget, self.cache.max_len - len(seq.tokens))
        if room <= 0 or max(seq.tokens[base:]) >= self.model.config.vocab_size:
            return None
        path = _path_of(seq.tokens[base:-1], slot)
        slot.tokens = slot.parents = ()
        if path and not self.cache.reserve(slot.index, path[-1] + 1):
            return None  # another sequence shares the block, and there is none to copy it to
        self.cache.keep(slot.index, path)
        base += len(path)
        if not self.cache.reserve(slot.index, len(seq.tokens) - base + room):
            return None  # no memory for a draft
        if slot.own is not None:
            slot.own.read(seq.tokens)
        pending = seq.tokens[base:]
        return DraftBuilder(seq, slot.index, base, pending, room, num_certain=len(pending))

    def _feed(self, builders: Sequence[DraftBuilder]) -> list[Scores]:
        batch, wanted = new_rows(builders)
        own: list[tuple[OwnTokens, int]] = []
        for builder in builders:
            slot = self._slots[builder.seq.id]
            slot.tokens, slot.parents = tuple(builder.tokens), tuple(builder.parents)
            if slot.own is not None:
                own.append((slot.own, len(builder.frontier)))
        states = self._states(batch, wanted)
        if self.head is not None:
            return self.head.scores(states, own)
        logits = self.model.head(states)[:, : self.vocab_size]
        return [Scores(row) for row in logits]

    def _states(self, batch: Batch, wanted: Sequence[int]) -> Floats:
        """Run a batch in parts and return the last hidden states (M, D) of the wanted rows."""
        states, first = [], 0
        for part in batch.split(MAX_ROWS):
            last = self.model.forward(part, self.cache).last
            stop = first + part.num_rows
            states.append(last[[row - first for row in wanted if first <= row < stop]])
            first = stop
        return np.concatenate(states)


def _listed(options: Options, target: Target, vocab_size: int, trimmed: Ids | None) -> Ids | None:
    """Return the tokens that are scored in every text, None for all. Raises ConfigError."""
    size = options.list_size
    if size and trimmed is not None:
        raise ConfigError(
            f"draft_vocab={size}: '{options.model}' has a list of its own; leave it out, or give full"
        )
    if trimmed is not None and options.draft_vocab != "full":
        return trimmed
    return list_of(options.draft_vocab, target.vocabulary, vocab_size)


def _path_of(tokens: Sequence[int], slot: Slot) -> list[int]:
    """Return the computed rows that hold these tokens, one after the other, as far as they do."""
    children = tree.children(slot.parents)
    path: list[int] = []
    for token in tokens:
        below = children.get(path[-1] if path else -1, [])
        row = next((row for row in below if slot.tokens[row] == token), None)
        if row is None:
            break
        path.append(row)
    return path
