"""A smaller model guesses for a larger one: classic speculative decoding, as a tree.

The draft has a cache of its own, whose blocks come out of the target's memory where that is limited. Before it guesses
it prefills the tokens of the sequence that its cache lacks: a prompt, the target's own token, or all tokens since the
sequence was preempted. Its tree grows best first over scratch rows; the rows of accepted nodes stay, so nothing is
computed twice.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); trees: SpecInfer
(arXiv 2305.09781).

M rows whose logits are needed, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ConfigError
from forerun.core.types import Outcome, Seq
from forerun.drafters.base.contract import SELF, DrafterBytes, Method, Target, as_given
from forerun.drafters.base.draft_head import DraftHead, Scores, head_nbytes, list_of
from forerun.drafters.base.networks.drafter import NetworkDrafter, NetworkOptions, in_int4
from forerun.drafters.base.networks.network import Network, TakeSteps, kv_nbytes, num_blocks_for
from forerun.drafters.base.vocabulary import Vocabulary, vocabulary_difference
from forerun.drafters.draft_model import trimmed as trimmed_folder
from forerun.drafters.draft_model.resident import Parts, Resident
from forerun.drafters.draft_model.slot import Slot
from forerun.hub.names import here
from forerun.model.cache.base import KVCache
from forerun.model.loader import step_nbytes
from forerun.model.model import Model, pass_nbytes
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.rtn import Scheme

MAX_PENDING = 16
"""Tokens that a step takes along; more are read before."""
MAX_ROWS = 256
"""Rows prefilled in one pass: bounds the step's buffers when a long prompt is read."""

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
    named, tokens = options, None
    if trimmed_folder.is_one(options.model):
        draft, tokens = trimmed_folder.load(options.model, target)
        named = replace(options, model=draft)
    again = partial(load, named, target)
    return drafter_of(again(), options, target, tokens, again)


def drafter_of(
    model: Model,
    options: Options,
    target: Target,
    listed: Ids | None = None,
    load: Callable[[], Model] | None = None,
) -> NetworkDrafter:
    """Draft with a loaded model and, if its head is trimmed, the `listed` tokens, ascending.

    With a way to `load` it again it need not always be in memory.
    """
    return NetworkDrafter(options, DraftModel(model, options, target, listed, load))


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
        "num_steps": 7,
    },
    unshared=as_given,
    smaller=in_int4,
    check=check,
    example=example,
    grids={"num_draft": (1, 2, 3, 4, 5, 6, 8, 10, 12), "num_steps": (1, 2, 3, 4, 5, 6, 8)},
)


class DraftModel(Network):
    """Runs a model, one slot of its cache a sequence."""

    # A model of the target's family is right more often than its probabilities say.
    temperature = spread = 0.5
    # It is right twice as often as a network that was trained on the target's states, and so is what follows.
    share, gain = 0.9, 1.3
    knows_paths = is_model = True

    def __init__(
        self,
        model: Model,
        options: Options,
        target: Target,
        listed: Ids | None = None,
        load: Callable[[], Model] | None = None,
    ) -> None:
        """Take the model and, if its head is trimmed, the `listed` tokens, ascending; `load` loads it again."""
        vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
        listed = _listed(options, target, vocab_size, listed)
        num_scored = None if listed is None else len(listed)
        step = step_nbytes(model.config, model.nbytes(), num_scored)
        self.step_cost = step / pass_nbytes(target.model)
        max_len = min(target.max_len, model.config.max_position)
        num_blocks = num_blocks_for(target, max_len)

        def parts(model: Model) -> Parts:
            head = None if listed is None else DraftHead(model, vocab_size, listed)
            cache = model.new_cache(
                target.max_num_seqs,
                max_len,
                kv=options.kv,
                num_blocks=num_blocks,
                num_checkpoints=0,
            )
            return Parts(model, head, cache)

        self.vocab_size = vocab_size
        self.resident = Resident(parts, model, load)  # which does not refer to this
        self.kv_block_nbytes = self.cache.block_nbytes
        self.slots: dict[int, Slot] = {}
        self._unopened: set[int] = set()
        """Sequences that began before it came back."""

    @property
    def model(self) -> Model:
        """The model, where it is in memory; so are the head and the cache."""
        return self.resident.parts.model

    @property
    def head(self) -> DraftHead | None:
        """The cut head; None: all tokens are scored."""
        return self.resident.parts.head

    @property
    def cache(self) -> KVCache:
        """Its keys and values."""
        return self.resident.parts.cache

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Take a slot, if there is memory; the tokens are read when a draft is asked for."""
        self._unopened.discard(seq.id)
        if not self.resident.is_here:
            self._unopened.add(seq.id)
            return
        opened = self.cache.open(seq.tokens)
        if opened is not None:
            text_tokens = None if self.head is None else self.head.new_text()
            self.slots[seq.id] = Slot(opened[0], text_tokens)

    def end(self, seq: Seq) -> None:
        """Free the sequence's slot of the draft's cache."""
        self._unopened.discard(seq.id)
        slot = self.slots.pop(seq.id, None)
        if slot is not None:
            self.cache.close(slot.index, seq.tokens)

    def offload(self) -> None:
        """Leave memory until it is wanted again."""
        if self.resident.is_here and self.resident.offload():
            self._unopened.update(self.slots)
            self.slots.clear()

    def reload(self) -> float:
        """Be loaded again, in a thread of its own; return the seconds that took, once it is there."""
        return 0.0 if self.resident.is_here else self.resident.reload()

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
        if not self.resident.is_here:
            return len(seq.tokens)
        if seq.id in self._unopened:
            self.begin(seq, Outcome((), ()))
        slot = self.slots.get(seq.id)
        if slot is None:
            return 0
        num_missing = len(seq.tokens) - self.cache.length(slot.index)
        return num_missing if num_missing > MAX_PENDING else 0

    def read(self, seq: Seq, most: int) -> int:
        """Read a part of the text, but for its last token."""
        if not self.resident.is_here:
            return 0
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
        path = slot.path_of(seq.tokens[base:-1])
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


def _listed(options: Options, target: Target, vocab_size: int, trimmed: Ids | None) -> Ids | None:
    """Return the tokens that are scored in every text, None for all. Raises ConfigError."""
    if trimmed is None or options.draft_vocab == "full":
        return list_of(options.draft_vocab, target, vocab_size)
    if options.draft_vocab not in ("auto", "counted"):
        raise ConfigError(
            f"draft_vocab={options.draft_vocab}: '{options.model}' has a list of its own; leave it out, or give full"
        )
    return trimmed
