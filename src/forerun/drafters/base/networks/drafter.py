"""The drafter of networks, which runs every kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

from forerun.core.errors import ConfigError, check_least
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq, drafts_of
from forerun.drafters.base.contract import Drafter, DrafterBytes
from forerun.drafters.base.networks.network import MAX_STEPS, Network
from forerun.drafters.base.tree_noise import SPREAD, noise_below
from forerun.model.kernels import native
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from forerun._native import TextNGramModel, Trace

_BITS = {"none": 16, "int8": 8, "int4": 4}


class ChecksKind(Protocol):
    """A kind of networks that are read from files."""

    def check_kind(self, model: str) -> None:
        """Raise LoadError for a file that is of another kind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Which trained network drafts, and how much it guesses."""

    network: ClassVar[ChecksKind | None] = None
    """The kind of network, which `model` has to be of."""

    model: str
    """A folder of `forerun train drafter`."""
    num_draft: int = 7
    """Nodes of a tree at most."""
    num_steps: int = 4
    """Steps of the network in a draft, at most: each expands a node."""
    min_chance: float = 0.1
    """Probability that a node is reached, at least."""
    quant: Scheme = "int4"
    """How the network's weights are rounded, none: to fp16; rows of the target's head stay as they are."""
    min_doubt: float = 0.2
    """With `recycling`: the network steps where that guess is needed and wrong with at least this probability."""
    draft_vocab: str = "auto"
    """Tokens that a full head may guess, the text's own besides for a model: a number, full, auto: 32768 of a large
    vocabulary, or counted: the 16384 that replies have most often."""

    @property
    def bits(self) -> int:
        """Return the bits of a weight of the network."""
        return _BITS[self.quant]

    def __post_init__(self) -> None:
        check_least("num_draft", self.num_draft, 1)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}")
        for name in ("min_chance", "min_doubt"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be 0 to 1, got {getattr(self, name)}")
        text = self.draft_vocab
        if text not in ("auto", "full", "counted") and not (text.isdecimal() and int(text)):
            raise ConfigError(
                f"draft_vocab must be auto, counted, full or a number from 1, got {text!r}"
            )
        if self.network is not None:
            self.network.check_kind(self.model)  # a wrong one is refused before a model is loaded


AnyOptions = TypeVar("AnyOptions", bound=NetworkOptions)


def in_int4(options: AnyOptions) -> AnyOptions | None:
    """Round the weights of what drafts to int4; None where they are: for `Method.smaller`."""
    return None if options.quant == "int4" else replace(options, quant="int4")


class NetworkDrafter(Drafter):
    """Drafts with a network; with others and tables in a `cascade`."""

    def __init__(self, options: NetworkOptions, network: Network) -> None:
        """Raises LoadError without the native library, which grows the trees."""
        native.require()
        self.options, self.network, self.max_nodes = options, network, options.num_draft
        self.features, self.kv_block_nbytes = network.features, network.kv_block_nbytes

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Show the network the prompt."""
        self.network.end(seq)
        self.network.begin(seq, outcome)

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence, its likeliest nodes first, in one call for all."""
        return joint_drafts([self], seqs, budgets, None).drafts

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Show the network the rows that are committed now."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            self.network.observe(seq, outcome)

    def end(self, seq: Seq) -> None:
        """Let the network forget the sequence."""
        self.network.end(seq)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the network's weights, and what it keeps of each sequence."""
        return self.network.memory(num_seqs, max_len)


class Grown(NamedTuple):
    """Drafts of some sequences, and what is learned from them once the tokens are known."""

    drafts: list[Draft]
    num_model_steps: list[int]
    """Steps that models took, by sequence."""
    said: list[Trace]
    """What was said of each sequence."""
    partners: list[Network]
    """Who were asked, in their order there."""


def joint_drafts(
    drafters: Sequence[NetworkDrafter],
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

    most = max(drafter.options.num_draft for drafter in drafters)
    num_nodes = [min(budget, most) for budget in budgets]
    if not any(num_nodes):
        return Grown([EMPTY_DRAFT for _ in seqs], [0] * len(seqs), [], [])
    doubts = min_doubts or [drafter.options.min_doubt for drafter in drafters]
    partners, networks, spread = [], [], SPREAD
    for drafter, min_doubt in zip(drafters, doubts, strict=True):
        options, network = drafter.options, drafter.network
        asked = [True] * len(seqs)
        if network.is_model and asks_models is not None:
            asked = [*asks_models]
        if any(asked):
            num_steps = [options.num_steps * each for each in asked]
            partners.append(network.partner(seqs, num_nodes, num_steps, min_doubt))
            networks.append(network)
            spread = network.spread
    trees, taken, said = _native.grow(
        partners,
        [seq.tokens[-1] for seq in seqs],
        num_nodes,
        min(drafter.options.min_chance for drafter in drafters),
        ngrams,
        [noise_below(seq, spread) for seq in seqs],
    )
    of_models = [steps for steps, each in zip(taken, networks, strict=True) if each.is_model]
    num_steps = [sum(steps) for steps in zip(*of_models)] or [0] * len(seqs)
    return Grown(drafts_of(trees), num_steps, said, networks)
