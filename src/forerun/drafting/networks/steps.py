"""Drafters whose network is a decoder: trees grow in Python, and a step is a pass of one row a sequence.

What such networks share beside their trees: the tokens that their head is cut to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import ConfigError
from forerun.core.types import Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.drafting.base import DrafterBytes, Target
from forerun.drafting.best_first import MAX_STEPS, DraftRequest, GuessTree, Step, grow, likeliest
from forerun.drafting.draft_head import DraftHead, Scores
from forerun.drafting.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafting.tree_noise import SPREAD
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import blocks_of

TakeSteps = Callable[[int, Sequence[Step]], Sequence[Scores]]
"""Takes a step's number, and for each sequence that takes part its token; returns what may follow each."""


class StepDrafter(NetworkDrafter):
    """Grows each tree best first; `_new_draft` computes the steps."""

    spreads = 1.0, SPREAD
    """s of `tree_noise`: for greedy requests, whose noise is 0, and for those that sample."""

    def _new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts of these sequences. Sets the nodes of one that cannot be drafted for to 0."""
        raise NotImplementedError

    def _trees(self, seqs: Sequence[Seq], request: DraftRequest) -> list[GuessTree]:
        request.num_nodes = num_nodes = [*request.num_nodes]
        take, adjust = self._new_draft(seqs, num_nodes), _Adjust(seqs)
        greedy, sampled = self.spreads
        request.noises = [noise and noise._replace(spread=sampled) for noise in request.noises]

        def take_steps(number: int, steps: Sequence[Step]) -> list[tuple[Ids, Floats]]:
            return [
                likeliest(scores.logits, step, scores.tokens, (1.0 if step.noise else greedy,))
                for step, scores in zip(steps, adjust(steps, take(number, steps)), strict=True)
            ]

        return grow(request, MAX_STEPS, take_steps)


class CacheSlot(Protocol):
    """A sequence's slot in the cache of a `CacheDrafter`."""

    index: int


Slot = TypeVar("Slot", bound=CacheSlot)


class CacheDrafter(StepDrafter, Generic[Slot]):
    """Keeps keys and values of its own, a slot a sequence: as many blocks as the target has."""

    def __init__(self, options: NetworkOptions, cache: KVCache, head: DraftHead | None) -> None:
        super().__init__(options)
        self.cache, self.head = cache, head
        self.kv_block_nbytes = cache.block_nbytes
        self._slots: dict[int, Slot] = {}

    def _memory(self, num_seqs: int, rows: int, weights: int, states: int = 0) -> DrafterBytes:
        """Count weights, and keys and values of `rows` a sequence; copied rows of the target's head are weights."""
        blocks = blocks_of(min(rows, self.cache.max_len))
        head = self.head.nbytes(num_seqs) if self.head else 0
        return DrafterBytes(weights + head, num_seqs * blocks * self.cache.block_nbytes, states)


def num_blocks_for(target: Target, max_len: int) -> int | None:
    """Return the blocks of a drafter's cache: the target's, one sequence's at least; None for all it can fill.

    A sequence that finds none left is not drafted for.
    """
    if target.cache is None or not target.cache.is_limited:
        return None
    most = target.max_num_seqs * blocks_of(max_len)
    return min(most, max(blocks_of(max_len), target.cache.pool.num_blocks))


class _Adjust:
    """Applies each request's bias and penalties to what may follow its steps."""

    def __init__(self, seqs: Sequence[Seq]) -> None:
        self._seqs = seqs
        self._pipelines = [LogitsPipeline(s.params, s.tokens[: s.num_prompt]) for s in seqs]
        self._paths: list[dict[int, list[int]]] = []
        """By step and sequence: the tokens guessed up to it."""

    def __call__(self, steps: Sequence[Step], scores: Sequence[Scores]) -> list[Scores]:
        self._paths.append({})
        return [self._adjusted(*each) for each in zip(steps, scores, strict=True)]

    def _adjusted(self, step: Step, scores: Scores) -> Scores:
        i, path = step.sequence, list[int]()
        if step.parent >= 0:
            path = [*self._paths[step.parent][i], step.token]
        self._paths[-1][i] = path
        if not self._pipelines[i].changes_logits:
            return scores
        generated = self._seqs[i].generated + path
        return Scores(self._pipelines[i].adjusted(scores.dense(), generated))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOptions(NetworkOptions):
    """Options of a network whose head is the target's, cut."""

    draft_vocab: str = "auto"
    """Tokens it may guess besides the text's own: a number, full, or auto: 32768 of a large vocabulary."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        text = self.draft_vocab
        if text not in ("auto", "full") and not (text.isdecimal() and int(text)):
            raise ConfigError(f"draft_vocab must be auto, full or a number from 1, got {text!r}")


AnyOptions = TypeVar("AnyOptions", bound=NetworkOptions)


def in_int4(options: AnyOptions) -> AnyOptions | None:
    """Round the weights of what drafts to int4; None where they are: for `Method.smaller`."""
    return None if options.quant == "int4" else replace(options, quant="int4")
