"""What of every network that drafts can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from forerun.core.errors import ConfigError, check_least
from forerun.core.paths import expanded
from forerun.drafters.base.contract import TreeSize
from forerun.weights.rtn import Scheme

MAX_STEPS = 16
"""Steps of a draft."""
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
    num_draft: int | None = 7
    """Nodes of a tree at most; none: as many as pay, up to 15; 7 without the controller or within a memory budget."""
    num_steps: int = 4
    """Steps of the network in a draft, at most: each expands a node."""
    min_chance: float | None = 0.1
    """Probability that a node is reached, at least; none: 0.02, or 0.1 where `num_draft` is 7."""
    quant: Scheme = "int4"
    """How the network's weights are rounded, none: to fp16; rows of the target's head stay as they are."""
    min_doubt: float = 0.2
    """With `recycling`: the network steps where that guess is needed and wrong with at least this probability."""
    draft_vocab: str = "auto"
    """Tokens that a full head may guess, the text's own besides for a model: a number, full, auto: 32768 of a large
    vocabulary, counted: the 16384 that replies have most often, or a folder of `forerun trim-vocab`."""

    @property
    def bits(self) -> int:
        """Return the bits of a weight of the network."""
        return _BITS[self.quant]

    @property
    def tree_size(self) -> TreeSize:
        """Return where trees end."""
        return TreeSize.given(self.num_draft, self.min_chance)

    def __post_init__(self) -> None:
        check_least("num_draft", self.tree_size.num_draft, 1)
        if not 1 <= self.num_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 1 to {MAX_STEPS}, got {self.num_steps}")
        chances = {"min_chance": self.tree_size.min_chance, "min_doubt": self.min_doubt}
        for name, chance in chances.items():
            if not 0 <= chance <= 1:
                raise ConfigError(f"{name} must be 0 to 1, got {chance}")
        text = self.draft_vocab
        is_number = text.isdecimal() and int(text)
        if (
            text not in ("auto", "full", "counted")
            and not is_number
            and not expanded(text).is_dir()
        ):
            raise ConfigError(
                f"draft_vocab must be auto, counted, full, a number from 1 or a folder of forerun trim-vocab, "
                f"got {text!r}"
            )
        if self.network is not None:
            self.network.check_kind(self.model)  # a wrong one is refused before a model is loaded


AnyOptions = TypeVar("AnyOptions", bound=NetworkOptions)


def in_int4(options: AnyOptions) -> AnyOptions | None:
    """Round the weights of what drafts to int4; None where they are: for `Method.smaller`."""
    return None if options.quant == "int4" else replace(options, quant="int4")
