"""Networks that draft on the native kernels: how weights get there, one call a draft.

V' tokens of the head, D width of the target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import ConfigError, LoadError
from forerun.core.types import Seq
from forerun.drafters.base.contract import DrafterBytes
from forerun.drafters.base.networks.deferred import Deferred
from forerun.drafters.base.networks.network import LastStateNetwork
from forerun.drafters.base.networks.weights import NetworkWeights
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native
    from forerun._native import Partner

TOKENS = "draft_ids"
"""The tokens of a head (V',), beside the weights."""

_HEAD = re.compile(
    r"lm_head\.weight|head\.\d+\.weight|\d+\.\d+\.weight|markov_head\.markov_w2\.weight"
)
"""Of eagle3, of recurrent networks, of medusa, of dflash: rows by tokens."""

Config = TypeVar("Config")
Kernels = TypeVar("Kernels", bound="_native.DraftNetwork")


@dataclass(frozen=True)
class TrainedNetwork(Generic[Config]):
    """A network as it was read: its configuration, and its tensors by the names of the configuration's `shapes`."""

    config: Config
    tensors: Mapping[str, Floats]
    tokens: Ids | None = None
    """The tokens of the head (V',), ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become probabilities."""

    def cut(self, listed: Ids | None) -> Self:
        """Keep the head's rows of the tokens on a list, ascending (VocabTrim, arXiv 2506.22694); None: of all.

        A head that is the target's is taken for those tokens alone. Raises ConfigError if none is left.
        """
        if listed is None:
            return self
        known = listed if self.tokens is None else self.tokens
        kept = np.intersect1d(known, listed)
        if not len(kept):
            raise ConfigError("the head knows none of the tokens that draft_vocab keeps: raise it")
        rows = kept if self.tokens is None else np.searchsorted(known, kept)
        cut = Deferred.of(self.tensors).changed(
            lambda name: _HEAD.fullmatch(name) is not None, lambda head: head[rows]
        )
        config: Any = self.config
        if hasattr(config, "draft_vocab_size"):
            config = replace(config, draft_vocab_size=len(kept))
        return replace(self, config=config, tensors=cut, tokens=kept)

    def packed(self, native_name: Callable[[str], str], bits: int) -> NetworkWeights:
        """Round the tensors, by the kernels' names, to 4, 8, 16 or 32 bits."""
        weights = NetworkWeights.of(Deferred.of(self.tensors).renamed(native_name), bits)
        if self.tokens is not None:
            weights.add_ids(TOKENS, self.tokens)
        return weights


class NativeNetwork(LastStateNetwork, Generic[Kernels]):
    """Drafts with the target's threads, its embedding and a copy of the rows of its head: one call a draft.

    It starts from the target's last state. Raises LoadError naming the weight that is wrong, or for a target without
    native kernels.
    """

    def __init__(
        self,
        model: Model,
        new_kernels: Callable[[NativeDecoder], Kernels],
        weights: NetworkWeights,
        *,
        eps: float,
        temperatures: Sequence[float],
        takes_head: bool,
    ) -> None:
        """Make the kernels beside the target and hand them the weights; `takes_head`: the head is the target's."""
        if not isinstance(model, NativeDecoder):
            native.require()
            raise LoadError(
                "a drafter with a trained network runs on the native kernels, and this model does not: "
                "leave out --backend and --device, or take -d recycling"
            )
        super().__init__()
        self.width = model.config.hidden_size
        try:
            self.native = kernels = new_kernels(model)
            if (tokens := weights.ids(TOKENS)) is not None:
                kernels.set_tokens(tokens)
            for matrix in weights.matrices():
                kernels.set(*matrix)
            for name, weight, bias in weights.norms():
                kernels.set_norm(name, weight, bias, eps)
            if takes_head:
                kernels.take_head()
            divisor = model.config.logits_divisor if takes_head else 1.0
            kernels.set_temperatures([divisor * each for each in temperatures])
            kernels.check()
        except ValueError as error:  # what the kernels refuse, naming the weight
            raise LoadError(str(error)) from error

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the packed weights, and a state a sequence."""
        return DrafterBytes(self.native.nbytes(), tables=4 * num_seqs * self.width)

    def partner(
        self,
        seqs: Sequence[Seq],
        num_nodes: list[int],
        num_steps: Sequence[int],
        min_doubt: float,
    ) -> Partner:
        """Begin drafts from each sequence's state; one sequence's is not copied."""
        states, row = self.states[seqs[0].id]
        if len(seqs) == 1:
            return self.asked(num_steps, min_doubt, [row], states)
        return self.asked(
            num_steps, min_doubt, None, np.stack([self.state_of(seq) for seq in seqs])
        )

    def asked(
        self,
        num_steps: Sequence[int],
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
        states: Floats | None = None,
    ) -> Partner:
        """Begin drafts from rows of `states` (R, D), or from those slots of its own cache; None: 0, 1, ..."""
        from forerun import _native

        return _native.Partner(
            self.native, num_steps, min_doubt, self.share, rows=rows, states=states
        )
