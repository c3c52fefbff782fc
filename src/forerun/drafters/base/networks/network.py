"""Networks that draft: what one is asked, what is kept of each sequence, and steps that run in Python.

D width of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from forerun.core.arrays import Floats
from forerun.core.types import EMPTY_DRAFT, LAST_ROW, Draft, Outcome, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.draft_head import Scores
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.tree_noise import SPREAD, noise_below
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import blocks_of
from forerun.model.kernels import native

if TYPE_CHECKING:
    from forerun._native import Partner, Step, TextNGramModel, Trace

TakeSteps = Callable[[int, "Sequence[Step]"], Sequence[Scores]]
"""Takes a step's number, and for each sequence that takes part its token; returns what may follow each."""


class Network(Drafter):
    """Guesses what may follow a token; drafts alone, or as one of several in a `Cascade`.

    Override `new_draft` where steps are passes of a model, or `partner` where they are native.
    """

    temperature: float = 1.0
    """Logits of greedy requests are divided by it before they become probabilities."""
    spread: float = SPREAD
    """s of `tree_noise`, for requests that sample."""
    share: float = 0.55
    """Of its word in a probability that others gave before it, until that is learned."""
    gain: float = 0.5
    """Tokens that a step of it brings for each doubt squared, until that is learned (`PartnerValue`)."""
    knows_paths: bool = False
    """Its steps may leave out tokens, which it then takes with the next one (`Step.path`)."""
    is_model: bool = False
    """Its steps are passes of a model: their price is learned, and it may be left out (`DraftModelUse`)."""
    step_cost: float = 0.0
    """The bytes that a step of a model reads, as a share of a pass of the target."""

    def __init__(self, options: NetworkOptions) -> None:
        """Raises LoadError without the native library, which grows the trees."""
        native.require()
        self.options = options
        self.max_nodes, self.min_chance = options.tree_size

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence, its likeliest nodes first, in one call for all."""
        return grow([self], seqs, budgets, None).drafts

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


class Grown(NamedTuple):
    """Drafts of some sequences, and what is learned from them once the tokens are known."""

    drafts: list[Draft]
    num_model_steps: list[int]
    """Steps that models took, by sequence."""
    said: list[Trace]
    """What was said of each sequence."""
    partners: list[Network]
    """Who were asked, in their order there."""


def grow(
    networks: Sequence[Network],
    seqs: Sequence[Seq],
    budgets: Sequence[int],
    ngrams: TextNGramModel | None,
    asks_models: Sequence[bool] | None = None,
    min_doubts: Sequence[float] = (),
) -> Grown:
    """Guess one tree a sequence with networks, the cheapest first, and an n-gram model of the texts.

    Models among them are asked for the sequences that `asks_models` says, None for all; each from its doubt on, by
    default that of its options.
    """
    from forerun import _native

    most = max(network.max_nodes for network in networks)
    num_nodes = [min(budget, most) for budget in budgets]
    if not any(num_nodes):
        return Grown([EMPTY_DRAFT for _ in seqs], [0] * len(seqs), [], [])
    doubts = min_doubts or [network.options.min_doubt for network in networks]
    partners, asked, spread = [], [], SPREAD
    for network, min_doubt in zip(networks, doubts, strict=True):
        takes_part = [True] * len(seqs)
        if network.is_model and asks_models is not None:
            takes_part = [*asks_models]
        if any(takes_part):
            num_steps = [network.options.num_steps * each for each in takes_part]
            partners.append(network.partner(seqs, num_nodes, num_steps, min_doubt))
            asked.append(network)
            spread = network.spread
    trees, taken, said = _native.grow(
        partners,
        [seq.tokens[-1] for seq in seqs],
        num_nodes,
        min(network.min_chance for network in networks),
        ngrams,
        [None if seq.is_greedy else noise_below(seq, spread) for seq in seqs],
    )
    of_models = [steps for steps, each in zip(taken, asked, strict=True) if each.is_model]
    num_steps = [sum(steps) for steps in zip(*of_models)] or [0] * len(seqs)
    return Grown([Draft(*tree) for tree in trees], num_steps, said, asked)


class LastStateNetwork(Network):
    """Starts from the target's last state of each sequence, a row of a pass that is not copied."""

    features = LAST_ROW

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__(options)
        self.states: dict[int, tuple[Floats, int]] = {}
        """The rows of a pass (R, D), and which of them it is."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state after the prompt."""
        assert outcome.hidden is not None, "asked for by `features`"
        self.states[seq.id] = outcome.hidden[-1:].copy(), 0  # lets the other rows of the prompt go

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Keep the state of each last committed row, which predicted the target's own token."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            kept = outcome.path[: len(outcome.emitted) - 1]  # as in `committed_rows`
            self.states[seq.id] = outcome.hidden, 1 + kept[-1] if kept else 0

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
