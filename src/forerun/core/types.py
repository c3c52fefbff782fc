"""What the packages exchange: drafts, outcomes, sequences, events. Data only, no behaviour of the engine.

Shapes: N nodes of a draft, V vocabulary, D hidden width, R rows of a pass (pending tokens, then the draft's nodes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.params import SamplingParams
from forerun.core.random import Noise


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens that hangs under a sequence's last committed token.

    `confidence[i]`, from 0 to 1, is the drafter's estimate of P(node i accepted | its parent is); a wrong one only
    costs time. The engine may cut a draft by it.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: list[int] | tuple[int, ...]) -> Draft:
        """Return guesses one after the other."""
        return cls(tuple(tokens), tree.chain(len(tokens)))

    def trim(self, budget: int) -> Draft:
        """Return the first `budget` nodes. Parents come before children, so they are a tree."""
        if len(self) <= budget:
            return self
        confidence = None if self.confidence is None else self.confidence[:budget]
        return Draft(self.tokens[:budget], self.parents[:budget], confidence)

    def only(self, keep: Sequence[int]) -> Draft:
        """Select nodes, in ascending order, none without its parent."""
        if len(keep) == len(self):
            return self
        new = {old: i for i, old in enumerate(keep)} | {-1: -1}
        return Draft(
            tuple(self.tokens[i] for i in keep),
            tuple(new[self.parents[i]] for i in keep),
            None if self.confidence is None else tuple(self.confidence[i] for i in keep),
        )


EMPTY_DRAFT = Draft()


class TopK(NamedTuple):
    """The likeliest tokens of some rows: `ids` (M, k) int64 and `values` (M, k) fp32, their logits, descending.

    `log_normaliser` (M,) fp32 is the logarithm of the sum of e^logit over the whole vocabulary; None if it was not
    asked for. All are on the host.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    log_normaliser: NDArray[np.float32] | None = None

    def probs(self) -> NDArray[np.float32]:
        """Return the tokens' probabilities (M, k), at most 1; 0 where there is no number.

        They are rounded from fp64, where exp is the C library's, as in the native kernels.
        """
        assert self.log_normaliser is not None, "the normaliser was not asked for"
        above = self.values.astype(np.float64) - self.log_normaliser[:, None].astype(np.float64)
        probabilities = [math.exp(min(x, 0.0)) if x == x else 0.0 for x in above.ravel().tolist()]
        return np.array(probabilities, np.float32).reshape(above.shape)

    def part(self, rows: range, k: int | None = None) -> TopK:
        """Select some rows, and only their first `k` columns."""
        if k is None and len(rows) == len(self.ids):
            return self
        cut, columns = slice(rows.start, rows.stop), slice(k)
        norm = None if self.log_normaliser is None else self.log_normaliser[cut]
        return TopK(self.ids[cut, columns], self.values[cut, columns], norm)


GuessTree = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""A draft as the native growth gives it: tokens, parents, and P(node accepted | parent accepted); best first."""


class Outcome(NamedTuple):
    """What verification made of one draft.

    `path` holds the accepted nodes from the root down; `emitted` the tokens now final: those nodes' tokens and the
    target's own token after them. `logits` (1 + N, V) are the raw logits at the root (row 0) and at node i (row 1 + i),
    None where no request needs more than `best`, the likeliest token of each of those rows; the next pass overwrites
    them. `hidden` (1 + N, D) are the target's features there (for `begin`: of the prompt, see `Features`), None if the
    drafter asked for none.
    `top` has the rows' likeliest tokens, as many as the drafter asked for, with values and normaliser; None if it
    asked for none.
    """

    path: tuple[int, ...]
    emitted: tuple[int, ...]
    logits: Floats | None = None
    hidden: Floats | None = None
    best: tuple[int, ...] | None = None
    top: TopK | None = None

    def committed_rows(self) -> tuple[int, ...]:
        """List the rows of the pass that are part of the text now: the root's, and those of the accepted nodes."""
        return (0, *(1 + i for i in self.path))[: len(self.emitted)]

    def likeliest(self, rows: slice) -> list[int]:
        """Return the target's likeliest tokens of some rows, the first of equal ones."""
        if self.best is not None:
            return [*self.best[rows]]
        assert self.logits is not None
        ids: list[int] = self.logits[rows].argmax(-1).tolist()
        return ids


@dataclass(frozen=True, slots=True)
class Features:
    """What a drafter asks to see of the target's passes.

    Hidden states arrive in `Outcome.hidden`, concatenated on the last axis: the outputs of `layers` in their order,
    then, with `last`, the state that the LM head reads (after the final norm). The likeliest tokens arrive in
    `Outcome.top`; for greedy requests they come out of the head's one read of its weights, without logits.
    """

    last: bool = False
    layers: tuple[int, ...] = ()
    whole_prompt: bool = False
    """`begin` gets a row for every prompt token, so cached prefixes are computed again. Without it `begin` gets the
    rows computed in this admission: those after the reused prefix, the last prompt token's at least."""
    last_row: bool = False
    """`begin` gets the row of the last prompt token alone: the others are not kept for it."""
    top_k: int = 0
    """Likeliest tokens in each row of `Outcome.top`, all of the vocabulary where that is smaller."""

    @property
    def reads_rows(self) -> bool:
        """Whether `begin` reads more of the prompt's states than the last one."""
        return (self.last or bool(self.layers)) and not self.last_row


NO_FEATURES = Features()
LAST_HIDDEN = Features(last=True)
LAST_ROW = Features(last=True, last_row=True)


class FinishReason(StrEnum):
    """Why a sequence ended; the values are OpenAI's, and `abort` for a cancelled one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, eq=False)
class Seq:
    """One running sequence. `tokens` holds the prompt and everything emitted; the last one is not in the cache yet."""

    id: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    stream: int = 0
    """Index among the sequences of one seed."""
    num_instructions: int = 0
    """Prompt tokens before the first words of a user."""
    num_prompt: int = field(init=False)
    is_greedy: bool = field(init=False)
    noise: Noise = field(init=False)
    """What the sampler adds to its logits: a drafter may look at it."""
    slot: int = -1
    admitted_s: float | None = None
    """When it first got a slot, by `time.perf_counter`."""
    num_reused: int = 0
    """Prompt tokens whose rows the cache held already when it began, in memory or on disk."""
    num_from_disk: int = 0
    """Rows that were read from disk when it began."""
    num_lost: int = 0
    """Rows that it had when it was preempted."""
    parts_at: int | None = None
    """Where much of a prompt had to be read because it parts from an earlier text there."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.is_greedy = self.params.is_greedy
        self.noise = Noise(self.seed, self.stream)

    @property
    def generated(self) -> list[int]:
        """The emitted tokens, without the prompt."""
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one position, from raw logits: the token's, its rank (1 is best), the top ones."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class TextPiece(NamedTuple):
    """Text that became final with one token; `from_draft` is true if that token was drafted."""

    text: str
    from_draft: bool


class Event(NamedTuple):
    """What one step made final for one sequence.

    Text may lag behind the tokens: an incomplete character, or what could become a stop string, is held back.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    pieces: tuple[TextPiece, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    """Why it ended, where it had to."""

    @property
    def text(self) -> str:
        """Text that the event made final; empty while a character or stop string is incomplete."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One conversation to run: the user's turns in order."""

    id: str
    category: str
    turns: tuple[str, ...]
