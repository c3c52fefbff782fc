"""Shared by networks that draft natively: how weights get to the kernels, one call a draft.

D width of the target, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError
from forerun.drafting.best_first import MAX_STEPS, GuessTree
from forerun.drafting.networks.drafter import StateNetwork
from forerun.drafting.networks.packed import NetworkWeights
from forerun.drafting.tree_noise import TreeNoise, native_noises
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native


def native_target(model: Model) -> NativeDecoder:
    """Return the target that a network drafts beside. Raises LoadError for one that the kernels do not run."""
    if not isinstance(model, NativeDecoder):
        native.require()
        raise LoadError(
            "a drafter with a trained network runs on the native kernels, and this model does not: "
            "leave out --backend and --device, or take -d recycling"
        )
    return model


@contextmanager
def load_errors() -> Iterator[None]:
    """Raise what the kernels refuse, naming the weight, as a LoadError."""
    try:
        yield
    except ValueError as error:
        raise LoadError(str(error)) from error


TOKENS = "draft_ids"
"""The tokens of a head (V',), beside the weights."""


def packed(tensors: Mapping[str, Floats], tokens: Ids | None, bits: int) -> NetworkWeights:
    """Round a network's tensors, by the kernels' names, to 4, 8, 16 or 32 bits; `tokens` (V',) are the head's."""
    weights = NetworkWeights.of(tensors, bits)
    if tokens is not None:
        weights.add_ids(TOKENS, tokens)
    return weights


def fill(
    network: _native.DraftNetwork,
    weights: NetworkWeights,
    target: NativeDecoder,
    *,
    eps: float,
    temperatures: Sequence[float],
    takes_head: bool,
) -> None:
    """Hand weights over and check them; with `takes_head` the head's rows are copied from the target's.

    Raises ValueError naming the weight that is wrong.
    """
    if (tokens := weights.ids(TOKENS)) is not None:
        network.set_tokens(tokens)
    for matrix in weights.matrices():
        network.set(*matrix)
    for name, weight, bias in weights.norms():
        network.set_norm(name, weight, bias, eps)
    if takes_head:
        network.take_head()
        divisor = target.config.logits_divisor
        temperatures = tuple(divisor * each for each in temperatures)
    network.set_temperatures(temperatures)
    network.check()


def floats(values: Floats) -> Floats:
    """Return what the native kernels read: fp32, contiguous."""
    return np.ascontiguousarray(values, np.float32)


class NativeStateNetwork(StateNetwork):
    """Drafts from the target's last state natively: a tree of every sequence in one call."""

    def __init__(self, network: _native.StateNetwork) -> None:
        self._native = network

    def draft(
        self,
        hidden: Floats,
        tokens: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        ngrams: _native.TextNGramModel | None = None,
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
        noises: Sequence[TreeNoise | None] = (),
    ) -> list[GuessTree]:
        """Hand the states over as they lie."""
        limits = (min(num_steps, MAX_STEPS), min_chance)
        seen = native_noises(noises)
        found = (hidden, tokens, num_nodes, *limits, ngrams, min_doubt, rows, seen)
        return self._native.draft(*found)

    def nbytes(self) -> int:
        """Count the bytes of the packed weights."""
        return self._native.nbytes()
