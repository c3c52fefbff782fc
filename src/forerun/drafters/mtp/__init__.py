"""MTP: the head that a model was trained with, which guesses the token after the next, over and over.

Qwen3-Next and Qwen3.5 ship one (`mtp.*`, in GGUF files `blk.N.nextn.*`). It reads the target's last state of every
committed row and keeps keys and values of its own for them; rows of guesses stand above those until the draft is
verified, and are computed again with the target's states where they were right. The tree grows best first by the
head's own probabilities and the sampler's noise.

Sources: multi-token prediction, DeepSeek-V3, arXiv 2412.19437, after Gloeckle et al., arXiv 2404.19737; a cut head,
FR-Spec, arXiv 2502.14856.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.types import LAST_HIDDEN, Draft, Outcome, Seq
from forerun.drafters.base.contract import SELF, DrafterBytes, Method, Target, as_given
from forerun.drafters.base.draft_head import DraftHead, Scores, TextTokens, head_nbytes, list_of
from forerun.drafters.base.networks.network import (
    Network,
    TakeSteps,
    kv_nbytes,
    num_blocks_for,
)
from forerun.drafters.base.networks.options import MAX_STEPS, NetworkOptions, in_int4
from forerun.drafters.base.networks.trained import UNTRAINED
from forerun.drafters.mtp import files
from forerun.drafters.mtp.network import MAX_ROWS, HeadLayers
from forerun.model.mtp_tensors import head_of

if TYPE_CHECKING:
    from forerun._native import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which head, and how much it guesses."""

    model: str = SELF
    """The file with the head; self is the target's own."""


def build(options: Options, target: Target) -> MtpHead:
    """Read the head. Raises LoadError if there is none, or one of another model."""
    return MtpHead(options, target)


def example(target: Target) -> Options:
    """Choose a head of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0, quant="none")


def bundled_for(target: Target) -> bool:
    """Tell whether the target's own file has a head."""
    config = target.model.config
    if target.path is None or head_of(target.names, config.num_layers) is None:
        return False
    return files.has_head(target.path, config)


METHOD = Method(
    unshared=as_given,
    example=example,
    bundled_for=bundled_for,
    smaller=in_int4,
    tune_when_named=True,  # few models have such a head; it is tried as part of `auto`
    grids={"num_draft": (2, 3, 4, 5, 7, 9), "num_steps": (1, 2, 3, 4, 5, 6)},
)


@dataclass(slots=True)
class HeadSlot:
    """A sequence's rows in the head's cache: row i has read token i + 1 of the text, unless some are missing."""

    index: int
    text_tokens: TextTokens | None
    is_complete: bool = True
    state: Floats | None = None
    """n of the last committed row (D,)."""


class MtpHead(Network):
    """Feeds a head the target's last state of every committed row, a slot of its cache a sequence."""

    features = LAST_HIDDEN

    def __init__(self, options: Options, target: Target) -> None:
        super().__init__(options)
        weights, model = files.read(options.model, target), target.model
        max_len = min(target.max_len, model.config.max_position)
        shape = replace(weights.config, max_position=max_len + MAX_STEPS)
        self.layers = HeadLayers(replace(weights, config=shape), model, options.quant)
        self.vocab_size = model.config.vocab_size
        listed = list_of(options.draft_vocab, target, self.vocab_size)
        self.head = None
        if listed is not None:
            self.head = DraftHead(self.layers.text, self.vocab_size, listed)
        num_blocks = num_blocks_for(target, max_len + MAX_STEPS)
        self.cache = self.layers.block.new_cache(
            target.max_num_seqs, max_len + MAX_STEPS, num_blocks=num_blocks
        )
        self.kv_block_nbytes = self.cache.block_nbytes
        self.slots: dict[int, HeadSlot] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Feed the prompt's rows that the target computed; those of a reused prefix are there if the cache has them.

        Rows that it lacks are missing: the block does not see them.
        """
        assert outcome.hidden is not None, "asked for by `features`"
        self.end(seq)
        after = seq.tokens[1:]  # what the rows read
        opened = self.cache.open(after)
        if opened is None:
            return
        index, num_cached = opened
        text_tokens = None if self.head is None else self.head.new_text()
        slot = self.slots[seq.id] = HeadSlot(index, text_tokens)
        num_missing = len(after) - len(outcome.hidden) - num_cached
        if num_missing > 0:
            self.cache.truncate(index, num_cached)  # the rows to come are of other tokens
            slot.is_complete = False
        hidden = outcome.hidden[max(0, -num_missing) :]  # what is cached needs no second reading
        self._prefill(seq, after[len(after) - len(hidden) :], hidden)

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Feed the rows that are committed now, with the tokens that came after them."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            if seq.id in self.slots:
                self._prefill(seq, [*outcome.emitted], outcome.hidden[[*outcome.committed_rows()]])

    def end(self, seq: Seq) -> None:
        """Free the sequence's slot; its rows stay for a text that begins alike, until their blocks are needed."""
        slot = self.slots.pop(seq.id, None)
        if slot is not None:
            self.cache.close(slot.index, seq.tokens[1:] if slot.is_complete else ())

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count weights, and keys and values; copied rows of the target's head are weights."""
        weights = self.layers.nbytes() + head_nbytes(self.head, num_seqs)
        return DrafterBytes(weights, kv_nbytes(self.cache, num_seqs, max_len + MAX_STEPS))

    def _prefill(self, seq: Seq, tokens: list[int], hidden: Floats) -> None:
        """Commit rows of tokens and the states (R, D) before them; without memory for them, give up the slot."""
        slot = self.slots[seq.id]
        for start in range(0, len(tokens), MAX_ROWS):
            part = tokens[start : start + MAX_ROWS]
            if not self.cache.reserve(slot.index, len(part)):
                if self.slots.pop(seq.id, None) is not None:
                    self.cache.close(slot.index, ())
                return
            inputs = self.layers.inputs(part, hidden[start : start + MAX_ROWS])
            base = self.cache.length(slot.index)
            batch = Batch((Segment(slot.index, base, (0,) * len(part), certain=len(part)),))
            slot.state = self.layers.run(batch, self.cache, inputs)[-1]
            self.cache.keep(slot.index, range(len(part)))

    def new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts: rows of guesses stand above the committed ones."""
        slots = [self.slots.get(seq.id) for seq in seqs]
        for i, (seq, slot) in enumerate(zip(seqs, slots, strict=True)):
            if slot is None or not self.cache.reserve(slot.index, self.options.num_steps):
                num_nodes[i] = 0
            elif slot.text_tokens is not None:
                slot.text_tokens.read(seq.tokens)
        parents: list[list[int]] = [[] for _ in seqs]
        """Of the rows of each sequence's draft, above its committed ones."""
        states: list[dict[int, tuple[int, Floats]]] = []
        """By step and sequence: the row that was computed, -1 the last committed one, and its state."""

        def take_steps(number: int, steps: Sequence[Step]) -> list[Scores]:
            here: dict[int, tuple[int, Floats]] = {}
            for step in steps:
                if step.parent < 0:
                    slot = slots[step.sequence]
                    assert slot is not None
                    assert slot.state is not None
                    here[step.sequence] = -1, slot.state
            below = [step for step in steps if step.parent >= 0]
            if below:
                befores = [states[step.parent][step.sequence] for step in below]
                here |= self._guess(below, befores, slots, parents)
            states.append(here)
            rows = np.stack([here[step.sequence][1] for step in steps])
            stepping = (slots[step.sequence] for step in steps)
            return self._scores(rows, [slot for slot in stepping if slot is not None])

        return take_steps

    def _guess(
        self,
        steps: Sequence[Step],
        befores: Sequence[tuple[int, Floats]],
        slots: Sequence[HeadSlot | None],
        parents: Sequence[list[int]],
    ) -> dict[int, tuple[int, Floats]]:
        """Compute a row a sequence, below the row and with the state before it."""
        segments = []
        for step, (row, _) in zip(steps, befores, strict=True):
            rows, slot = parents[step.sequence], slots[step.sequence]
            assert slot is not None
            rows.append(row)
            base, tokens = self.cache.length(slot.index), (0,) * len(rows)
            segments.append(Segment(slot.index, base, tokens, (*rows,), len(rows) - 1))
        hidden = np.stack([state for _, state in befores])
        inputs = self.layers.inputs([step.token for step in steps], hidden)
        states = self.layers.run(Batch(tuple(segments)), self.cache, inputs)
        return {
            step.sequence: (len(parents[step.sequence]) - 1, state)
            for step, state in zip(steps, states, strict=True)
        }

    def _scores(self, states: Floats, slots: Sequence[HeadSlot]) -> list[Scores]:
        if self.head is None:
            logits = self.layers.text.head(states)
            return [Scores(row) for row in logits]
        return self.head.scores(states, [slot.text_tokens for slot in slots if slot.text_tokens])
