"""Networks that draft: what one is asked, what is kept of each sequence, and steps that run in Python.

D width of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forerun.core.arrays import Floats
from forerun.core.types import LAST_ROW, NO_FEATURES, Features, Outcome, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters.base.contract import DrafterBytes, Target
from forerun.drafters.base.draft_head import Scores
from forerun.drafters.base.tree_noise import SPREAD
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import blocks_of

if TYPE_CHECKING:
    from forerun._native import Partner, Step

MAX_STEPS = 16
"""Steps of a draft."""
TakeSteps = Callable[[int, "Sequence[Step]"], Sequence[Scores]]
"""Takes a step's number, and for each sequence that takes part its token; returns what may follow each."""


class Network:
    """Guesses what may follow a token. The defaults are those of one that keeps nothing of a sequence.

    Override `new_draft` where steps are passes of a model, or `partner` where they are native.
    """

    features: Features = NO_FEATURES
    """What it reads of the target's passes."""
    kv_block_nbytes: int = 0
    """Bytes of a block of its keys and values, where they come out of the target's memory."""
    temperature: float = 1.0
    """Logits of greedy requests are divided by it before they become probabilities."""
    spread: float = SPREAD
    """s of `tree_noise`, for requests that sample."""
    share: float = 0.55
    """Of its word in a probability that others gave before it, until that is learned."""
    gain: float = 0.5
    """Tokens that a step of it brings for each doubt squared, until that is learned (`worth`)."""
    knows_paths: bool = False
    """Its steps may leave out tokens, which it then takes with the next one (`Step.path`)."""
    is_model: bool = False
    """Its steps are passes of a model: their price is learned, and it may be left out (`DraftModelUse`)."""
    step_cost: float = 0.0
    """The bytes that a step of a model reads, as a share of a pass of the target."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Start a sequence, as `Drafter.begin` does; it was ended before."""

    def observe(self, seq: Seq, outcome: Outcome) -> None:
        """Take the rows that are committed now; `seq.tokens` already holds `outcome.emitted`."""

    def end(self, seq: Seq) -> None:
        """Forget a sequence. Harmless for an unknown one."""

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the bytes at most for `num_seqs` sequences of `max_len` tokens."""
        raise NotImplementedError

    def partner(
        self,
        seqs: Sequence[Seq],
        num_nodes: list[int],
        num_steps: Sequence[int],
        min_doubt: float,
    ) -> Partner:
        """Begin drafts of at most so many nodes and steps, in which it is asked from a doubt on.

        Lowers the nodes where there is no room for them.
        """
        from forerun import _native

        nodes = [n if steps else 0 for n, steps in zip(num_nodes, num_steps, strict=True)]
        take = _Adjusted(seqs, self.new_draft(seqs, nodes))
        num_nodes[:] = [n or before for n, before in zip(nodes, num_nodes, strict=True)]
        steps = [each if n else 0 for each, n in zip(num_steps, nodes, strict=True)]
        return _native.Partner(
            take, steps, min_doubt, self.share, self.temperature, self.knows_paths
        )

    def num_unread(self, seq: Seq) -> int:
        """Count the tokens that it has to read before it can be asked, beyond the last few."""
        return 0

    def read(self, seq: Seq, most: int) -> int:
        """Read as many of these tokens at most; return how many."""
        return 0

    def offload(self) -> None:
        """Leave memory, if `reload` can bring it back."""

    def reload(self) -> float:
        """Come back into memory, in a thread of its own; return the seconds that took, once it is there."""
        return 0.0

    def new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts of these sequences. Sets the nodes of one that cannot be drafted for to 0."""
        raise NotImplementedError


class LastStateNetwork(Network):
    """Starts from the target's last state of each sequence, a row of a pass that is not copied."""

    features = LAST_ROW

    def __init__(self) -> None:
        self.states: dict[int, tuple[Floats, int]] = {}
        """The rows of a pass (R, D), and which of them it is."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state after the prompt."""
        assert outcome.hidden is not None, "asked for by `features`"
        self.states[seq.id] = outcome.hidden[-1:].copy(), 0  # lets the other rows of the prompt go

    def observe(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state of the last committed row, which predicted the target's own token."""
        assert outcome.hidden is not None, "asked for by `features`"
        self.states[seq.id] = outcome.hidden, outcome.committed_rows()[-1]

    def end(self, seq: Seq) -> None:
        """Drop the sequence's state."""
        self.states.pop(seq.id, None)

    def state_of(self, seq: Seq) -> Floats:
        """Return the state (D,)."""
        rows, row = self.states[seq.id]
        state: Floats = rows[row]
        return state


class _Adjusted:
    """Applies each request's bias and penalties to what may follow its steps."""

    def __init__(self, seqs: Sequence[Seq], take: TakeSteps) -> None:
        self._seqs, self._take = seqs, take
        self._pipelines = [LogitsPipeline(s.params, s.tokens[: s.num_prompt]) for s in seqs]
        self._paths: list[dict[int, list[int]]] = []
        """By step and sequence: the tokens guessed up to it."""

    def __call__(self, number: int, steps: Sequence[Step]) -> list[Scores]:
        self._paths.append({})
        scores = self._take(number, steps)
        return [self._adjusted(*each) for each in zip(steps, scores, strict=True)]

    def _adjusted(self, step: Step, scores: Scores) -> Scores:
        i, path = step.sequence, [*step.path]
        if step.parent >= 0:
            path = self._paths[step.parent][i] + path
        self._paths[-1][i] = path
        if not self._pipelines[i].changes_logits:
            return scores
        generated = self._seqs[i].generated + path
        return Scores(self._pipelines[i].adjusted(scores.dense(), generated))


def kv_nbytes(cache: KVCache, num_seqs: int, rows: int) -> int:
    """Count the keys and values at most of `rows` a sequence in a network's own cache."""
    return num_seqs * blocks_of(min(rows, cache.max_len)) * cache.block_nbytes


def num_blocks_for(target: Target, max_len: int) -> int | None:
    """Return the blocks of a drafter's cache: the target's, one sequence's at least; None for all it can fill.

    A sequence that finds none left is not drafted for.
    """
    if target.cache is None or not target.cache.is_limited:
        return None
    most = target.max_num_seqs * blocks_of(max_len)
    return min(most, max(blocks_of(max_len), target.cache.pool.num_blocks))
