"""A draft model that drafts: its cache, a slot a sequence, and how it leaves memory and comes back.

It comes back in a thread of its own, while passes go on.

M rows whose logits are needed, D width, V vocabulary.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ForerunError
from forerun.core.types import Outcome, Seq
from forerun.drafters.base.contract import DrafterBytes, Target
from forerun.drafters.base.draft_head import DraftHead, Scores, TextTokens, head_nbytes
from forerun.drafters.base.networks.network import Network, TakeSteps, kv_nbytes, num_blocks_for
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.model.cache.base import KVCache
from forerun.model.loader import step_nbytes
from forerun.model.model import Model, pass_nbytes
from forerun.system import background

if TYPE_CHECKING:
    from forerun._native import Step

MAX_PENDING = 16
"""Tokens that a step takes along; more are read before."""
MAX_ROWS = 256
"""Rows fed in one pass: bounds the step's buffers when a long prompt is read."""

_log = logging.getLogger(__name__)


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

    def path_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the computed rows that are these tokens, one below the other, as far as there are any."""
        children = tree.children(self.parents[: self.num_computed])
        path: list[int] = []
        for token in tokens:
            below = children.get(path[-1] if path else -1, [])
            row = next((row for row in below if self.tokens[row] == token), None)
            if row is None:
                break
            path.append(row)
        return path


@dataclass(frozen=True, slots=True)
class Parts:
    """A draft in memory."""

    model: Model
    head: DraftHead | None
    cache: KVCache


class Resident:
    """Keeps a draft in memory, or the way to get it there again."""

    def __init__(
        self, make: Callable[[Model], Parts], model: Model, load: Callable[[], Model] | None
    ) -> None:
        """Begin with the loaded model. Without `load` it stays."""
        self._make, self._load = make, load
        self._parts: Parts | None = make(model)
        self._loaded: Parts | None = None
        self._is_loading = False
        self._load_s = 0.0

    @property
    def parts(self) -> Parts:
        """What is in memory, which the draft has to be."""
        assert self._parts is not None
        return self._parts

    @property
    def is_here(self) -> bool:
        """True in memory."""
        return self._parts is not None

    def offload(self) -> bool:
        """Release weights, keys and values; False if they could not be loaded again."""
        if self._load is None:
            return False
        self._parts = None
        return True

    def reload(self) -> float:
        """Begin to load it, or take what was loaded meanwhile; return the seconds that took, 0 before."""
        if self._loaded is not None:
            self._parts, self._loaded, self._is_loading = self._loaded, None, False
            return self._load_s
        if not self._is_loading:
            self._is_loading = True
            background.start("forerun-draft", self._reload)
        return 0.0

    def _reload(self) -> None:
        assert self._load is not None
        begun_s = time.monotonic()
        try:
            parts = self._make(self._load())
        except (ForerunError, OSError, MemoryError) as error:
            _log.warning("the draft model cannot be loaded again: %s; going on without it", error)
            return
        except RuntimeError:
            if background.is_ending():  # which takes the threads that round
                return
            raise
        self._load_s = time.monotonic() - begun_s
        self._loaded = parts  # last: who steps takes it


class DraftModel(Network):
    """Runs a model, one slot of its cache a sequence."""

    # A model of the target's family is right more often than its probabilities say.
    temperature = spread = 0.5
    # It is right twice as often as a network that was trained on the target's states, and so is what follows.
    share, gain = 0.9, 1.3
    knows_paths = is_model = True

    def __init__(
        self,
        options: NetworkOptions,
        model: Model,
        target: Target,
        kv: Precision,
        listed: Ids | None,
        load: Callable[[], Model] | None,
    ) -> None:
        """Take the model and the `listed` tokens (n,) that it may guess, None for all; `load` loads it again."""
        super().__init__(options)
        vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
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
                kv=kv,
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
        self.end(seq)
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
