"""A smaller model guesses for a larger one: classic speculative decoding, as a tree.

The draft has a cache of its own, whose blocks come out of the target's memory where that is limited. Before it guesses
it is fed the tokens of the sequence that its cache lacks: a prompt, the target's own token, or all that came while the
sequence was preempted. Its tree grows best first over scratch rows; the rows of accepted nodes stay, so nothing is
computed twice.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); trees: SpecInfer
(arXiv 2305.09781).

M rows whose logits are needed, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ConfigError
from forerun.core.types import Outcome, Seq
from forerun.drafters.draft_model import trimmed as trimmed_folder
from forerun.drafting.base import SELF, DrafterBytes, Method, Target, as_given
from forerun.drafting.draft_head import (
    DraftHead,
    Scores,
    TextTokens,
    head_nbytes,
    list_of,
)
from forerun.drafting.networks.drafter import NetworkDrafter, NetworkOptions, in_int4
from forerun.drafting.networks.network import Network, TakeSteps, kv_nbytes, num_blocks_for
from forerun.drafting.vocabulary import Vocabulary, vocabulary_difference
from forerun.hub.names import here
from forerun.model.config import weight_shapes
from forerun.model.model import Model
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.rtn import Scheme

MAX_PENDING = 16
"""Tokens that a step takes along; more are read before."""
MAX_ROWS = 256
"""Rows fed in one pass: bounds the step's buffers when a long prompt is read."""

if TYPE_CHECKING:
    from forerun._native import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which draft, and how much it guesses."""

    model: str
    """The draft: a path, a known name or a Hugging Face name; self is the target's own file."""
    num_draft: int = 5
    """Nodes of a tree at most."""
    num_steps: int = 5
    """Passes of the draft at most, each of which expands a node."""
    quant: Scheme = "none"
    """Round the draft's weights to int8 or int4; none takes them as stored."""
    head_bits: Literal[4, 8] | None = None
    """Round the draft's output head to so many bits."""
    kv: Precision = "auto"
    """How its cache stores keys and values."""
    min_doubt: float = 0.05
    """Together with others: it steps where their guess is needed and wrong with at least this probability."""


def build(options: Options, target: Target) -> NetworkDrafter:
    """Load the draft. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    if not trimmed_folder.is_one(options.model):
        return drafter_of(load(options, target), options, target)
    draft, tokens = trimmed_folder.load(options.model, target)
    return drafter_of(load(replace(options, model=draft), target), options, target, tokens)


def drafter_of(
    model: Model, options: Options, target: Target, listed: Ids | None = None
) -> NetworkDrafter:
    """Draft with a loaded model and, if its head is trimmed, the `listed` tokens, ascending."""
    return NetworkDrafter(options, DraftModel(model, options, target, listed))


def load(options: Options, target: Target) -> Model:
    """Load the draft with its full head. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    model, vocabulary = target.load(options.model, quant=options.quant, head_bits=options.head_bits)
    if target.vocabulary and vocabulary:
        _compare(options.model, target.vocabulary, vocabulary)
    return model


def check(options: Options, target: Target) -> None:
    """Compare the vocabularies. Raises LoadError, and ConfigError if they differ."""
    path = here(options.model)
    if path is not None and target.vocabulary and not trimmed_folder.is_one(options.model):
        _compare(options.model, target.vocabulary, open_checkpoint(path).tokenizer())


def _compare(model: str, known: Vocabulary, vocabulary: Vocabulary) -> None:
    if difference := vocabulary_difference(known, vocabulary):
        raise ConfigError(
            f"'{model}' cannot draft for this model: {difference}; choose a draft of the same family"
        )


def example(target: Target) -> Options:
    """Name the target itself: `forerun check-drafter` has a relative of its tiny model for every name."""
    return Options(model=SELF)


METHOD = Method(
    as_partner={
        "quant": "int4",
        "head_bits": 4,
        "draft_vocab": "counted",
        "kv": "int8",
        "num_draft": 7,
        "num_steps": 4,
    },
    unshared=as_given,
    smaller=in_int4,
    check=check,
    example=example,
    grids={"num_draft": (1, 2, 3, 4, 5, 6, 8, 10, 12), "num_steps": (1, 2, 3, 4, 5, 6, 8)},
)


@dataclass(slots=True)
class Slot:
    """A sequence's slot in the draft's cache, and the rows computed above those committed there.

    The first `num_pending` of them are tokens that the cache lacked.
    """

    index: int
    text_tokens: TextTokens | None = None
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    num_pending: int = 0
    num_computed: int = 0

    def segment(self, base: int) -> Segment:
        """Return the rows that have not been computed yet, which then have been."""
        first, self.num_computed = self.num_computed, len(self.tokens)
        rows = tuple(self.tokens), tuple(self.parents)
        return Segment(self.index, base, *rows, first, certain=self.num_pending)


class DraftModel(Network):
    """Runs a model, one slot of its cache a sequence."""

    # A model of the target's family is right more often than its probabilities say.
    temperature = spread = 0.5
    # It is right twice as often as a network that was trained on the target's states.
    share = 0.9
    knows_paths = is_model = True

    def __init__(
        self, model: Model, options: Options, target: Target, listed: Ids | None = None
    ) -> None:
        """Take the model and, if its head is trimmed, the `listed` tokens, ascending."""
        self.model = model
        self.vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
        listed = _listed(options, target, self.vocab_size, listed)
        self.head = None if listed is None else DraftHead(model, self.vocab_size, listed)
        self.step_cost = step_nbytes(model, listed) / target.model.nbytes()
        max_len = min(target.max_len, model.config.max_position)
        num_blocks = num_blocks_for(target, max_len)
        self.cache = model.new_cache(
            target.max_num_seqs, max_len, kv=options.kv, num_blocks=num_blocks, num_checkpoints=0
        )
        self.kv_block_nbytes = self.cache.block_nbytes
        self.slots: dict[int, Slot] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Take a slot, if there is memory; the tokens are read when a draft is asked for."""
        opened = self.cache.open(seq.tokens)
        if opened is not None:
            text_tokens = None if self.head is None else self.head.new_text()
            self.slots[seq.id] = Slot(opened[0], text_tokens)

    def end(self, seq: Seq) -> None:
        """Free the sequence's slot of the draft's cache."""
        slot = self.slots.pop(seq.id, None)
        if slot is not None:
            self.cache.close(slot.index, seq.tokens)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count weights, keys and values, and recurrent states; copied rows of the head are weights."""
        states = 0 if self.cache.states is None else self.cache.states.nbytes_of(num_seqs)
        weights = self.model.nbytes() + head_nbytes(self.head, num_seqs)
        return DrafterBytes(weights, kv_nbytes(self.cache, num_seqs, max_len), states)

    def new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts: commit the rows that were right, and queue the tokens that the cache lacks."""
        for i, seq in enumerate(seqs):
            num_nodes[i] = self._start(seq, num_nodes[i])
        for i, seq in enumerate(seqs):
            if seq.id not in self.slots:  # its blocks went to another sequence
                num_nodes[i] = 0
        rows: list[dict[int, int]] = []
        """By step and sequence: the row that was computed."""

        def take_steps(number: int, steps: Sequence[Step]) -> list[Scores]:
            slots = [self.slots[seqs[step.sequence].id] for step in steps]
            here: dict[int, int] = {}
            for step, slot in zip(steps, slots, strict=True):
                i = step.sequence
                above = rows[step.parent][i] if step.parent >= 0 else slot.num_pending - 1
                for token in step.path:
                    slot.tokens.append(token)
                    slot.parents.append(above)
                    above = len(slot.tokens) - 1
                here[i] = above
            rows.append(here)
            segments = (slot.segment(self.cache.length(slot.index)) for slot in slots)
            states = self._states(Batch(tuple(segments)))
            if self.head is not None:
                return self.head.scores(states, [s.text_tokens for s in slots if s.text_tokens])
            return [Scores(row) for row in self.model.head(states)[:, : self.vocab_size]]

        return take_steps

    def num_unread(self, seq: Seq) -> int:
        """Count the tokens that its cache lacks, but for as many as a step takes along."""
        slot = self.slots.get(seq.id)
        if slot is None:
            return 0
        num_missing = len(seq.tokens) - self.cache.length(slot.index)
        return num_missing if num_missing > MAX_PENDING else 0

    def read(self, seq: Seq, most: int) -> int:
        """Read a part of the text, but for its last token."""
        slot = self.slots[seq.id]
        slot.tokens, slot.parents, slot.num_pending, slot.num_computed = [], [], 0, 0
        base = self.cache.length(slot.index)
        tokens = tuple(seq.tokens[base : min(base + most, len(seq.tokens) - 1)])
        if not self.cache.reserve(slot.index, len(tokens)):
            return 0
        self._states(Batch((Segment(slot.index, base, tokens, certain=len(tokens)),)))
        self.cache.keep(slot.index, range(len(tokens)))
        return len(tokens)

    def _start(self, seq: Seq, num_nodes: int) -> int:
        """Commit the computed rows that were right and queue the tokens that the cache lacks.

        Returns how many nodes fit, at most `num_nodes`.
        """
        slot = self.slots.get(seq.id)
        if slot is None:
            return 0
        base = self.cache.length(slot.index)
        num_free = min(num_nodes, self.cache.max_len - len(seq.tokens))
        if num_free <= 0 or max(seq.tokens[base:]) >= self.model.config.vocab_size:
            return 0
        path = _path_of(seq.tokens[base:-1], slot)
        slot.tokens, slot.parents = [], []
        if path and not self.cache.reserve(slot.index, path[-1] + 1):
            return 0  # another sequence shares the block, and there is none to copy it to
        self.cache.keep(slot.index, path)
        base += len(path)
        if not self.cache.reserve(slot.index, len(seq.tokens) - base + num_free):
            return 0  # no memory for a draft
        if slot.text_tokens is not None:
            slot.text_tokens.read(seq.tokens)
        slot.tokens, slot.num_computed = seq.tokens[base:], 0
        slot.num_pending = len(slot.tokens)
        slot.parents = [*tree.chain(slot.num_pending)]
        return num_free

    def _states(self, batch: Batch) -> Floats:
        """Run a batch in parts and return the last hidden state (D,) of each segment."""
        wanted = [span.stop - 1 for span in batch.spans()]
        states, first = [], 0
        for part in batch.split(MAX_ROWS):
            last = self.model.forward(part, self.cache).last
            stop = first + part.num_rows
            states.append(last[[row - first for row in wanted if first <= row < stop]])
            first = stop
        return np.concatenate(states)


def step_nbytes(model: Model, listed: Ids | None) -> float:
    """Return about how many bytes a step of a loaded model reads, as `model.loader.step_nbytes` does of a file."""
    config = model.config
    num_weights = sum(prod(shape) for shape in weight_shapes(config).values())
    num_scored = config.vocab_size if listed is None else len(listed)
    num_unread = config.vocab_size * (1 if config.tied_head else 2) - num_scored
    return model.nbytes() * (1 - num_unread * config.hidden_size / num_weights)


def _listed(options: Options, target: Target, vocab_size: int, trimmed: Ids | None) -> Ids | None:
    """Return the tokens that are scored in every text, None for all. Raises ConfigError."""
    if trimmed is None or options.draft_vocab == "full":
        return list_of(options.draft_vocab, target, vocab_size)
    if options.draft_vocab not in ("auto", "counted"):
        raise ConfigError(
            f"draft_vocab={options.draft_vocab}: '{options.model}' has a list of its own; leave it out, or give full"
        )
    return trimmed


def _path_of(tokens: Sequence[int], slot: Slot) -> list[int]:
    """Return the computed rows that are these tokens, one below the other, as far as there are any."""
    children = tree.children(slot.parents[: slot.num_computed])
    path: list[int] = []
    for token in tokens:
        below = children.get(path[-1] if path else -1, [])
        row = next((row for row in below if slot.tokens[row] == token), None)
        if row is None:
            break
        path.append(row)
    return path
