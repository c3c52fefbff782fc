"""MLP speculators that draft: `config.py` has the formulas, csrc/drafters/recurrent_network.cpp computes them.

R rows of a step, D width of the target, p inner width, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.drafters.mlp_speculator.config import EPS, GATE_TABLES, MLPSpeculatorConfig
from forerun.drafting.networks.native import (
    NativeStateNetwork,
    fill,
    load_errors,
    native_target,
    packed,
)
from forerun.drafting.networks.packed import NetworkWeights
from forerun.model.model import Model
from forerun.weights.rtn import HEAD_BITS


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
    """A network's configuration and its tensors by the names of `MLPSpeculator`.

    `head.i.weight` (V', p) are also there where they were made of the target's rows; without any, the head is the
    target's.
    """

    config: MLPSpeculatorConfig
    tensors: Mapping[str, Floats]
    tokens: Ids | None = None
    """The tokens of the head (V',), ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become chances."""

    @property
    def heads(self) -> list[Floats]:
        """Return the heads by depth, the last for all below."""
        found = list[Floats]()
        while (rows := self.tensors.get(f"head.{len(found)}.weight")) is not None:
            found.append(rows)
        return found

    def rounded(self, bits: int) -> NetworkWeights:
        """Return the tensors as the kernels take them."""
        return packed(_native_names(self.tensors), self.tokens, bits)


class RecurrentNetwork(NativeStateNetwork):
    """Drafts with the target's threads, its embedding, a copy of the rows of its head.

    Raises LoadError naming the weight that is wrong, or for a target without native kernels.
    """

    def __init__(
        self,
        weights: RecurrentWeights,
        model: Model,
        bits: int,
        rounded: NetworkWeights | None = None,
    ) -> None:
        """Take the tensors as they were `rounded` before, where they were."""
        from forerun import _native

        rounded = rounded or weights.rounded(bits)
        config, target = weights.config, native_target(model)
        with load_errors():
            network = _native.RecurrentNetwork(
                target.runtime,
                target.native,
                config.inner_dim,
                config.n_predict,
                config.max_depth,
                config.cell == "lstm",
                config.scale_input,
            )
            fill(
                network,
                rounded,
                target,
                eps=EPS,
                temperatures=weights.temperatures,
                takes_head=not any(name == "head.0" for name, *_ in rounded.matrices()),
            )
            if bits in HEAD_BITS:
                network.keep_mapped()
        super().__init__(network)


def _native_names(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """Name the tensors as the kernels do, the tables of an LSTM's gates side by side as `emb.0`."""
    found = dict(tensors)
    if tables := [found.pop(f"{n}.0.weight") for n in GATE_TABLES if f"{n}.0.weight" in found]:
        found["emb.0.weight"] = np.concatenate(tables, 1)
    named = dict[str, Floats]()
    for name, tensor in found.items():
        for theirs, ours in _NATIVE.items():
            name = name.replace(theirs, ours)
        named[name] = tensor
    return named


_NATIVE = {
    "projs.": "proj.",
    "cell_ln.": "ln.",
    "state_ln.0": "state_ln",
    "emb_map": "map",
    ".weight": "",
}
