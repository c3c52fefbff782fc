"""MLP speculators that draft: `config.py` has the formulas, csrc/drafters/recurrent_network.cpp computes them.

R rows of a step, D width of the target, p inner width, V' tokens of the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.drafters.base.networks.native import NativeNetwork, TrainedNetwork
from forerun.drafters.base.networks.weights import NetworkWeights
from forerun.drafters.mlp_speculator.config import EPS, GATE_TABLES, MLPSpeculatorConfig
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model
from forerun.weights.rtn import HEAD_BITS

if TYPE_CHECKING:
    from forerun import _native

RecurrentWeights = TrainedNetwork[MLPSpeculatorConfig]
"""`head.i.weight` (V', p) are also there where they were made of the target's rows; without any, it is the target's."""
_NATIVE = {
    "projs.": "proj.",
    "cell_ln.": "ln.",
    "state_ln.0": "state_ln",
    "emb_map": "map",
    ".weight": "",
}


def native_recurrent(
    weights: RecurrentWeights, model: Model, bits: int
) -> NativeNetwork[_native.RecurrentNetwork]:
    """Make the kernels of a recurrent network, its weights rounded to so many bits. Raises LoadError."""
    config, packed = weights.config, _packed(weights, bits)

    def new_kernels(target: NativeDecoder) -> _native.RecurrentNetwork:
        from forerun import _native

        return _native.RecurrentNetwork(
            target.runtime,
            target.native,
            config.inner_dim,
            config.n_predict,
            config.max_depth,
            config.cell == "lstm",
            config.scale_input,
        )

    network = NativeNetwork(
        model,
        new_kernels,
        packed,
        eps=EPS,
        temperatures=weights.temperatures,
        takes_head=not any(name == "head.0" for name, *_ in packed.matrices()),
    )
    if bits in HEAD_BITS:
        network.native.keep_mapped()
    return network


def _packed(weights: RecurrentWeights, bits: int) -> NetworkWeights:
    """Return the tensors as the kernels take them, the tables of an LSTM's gates side by side as `emb.0`."""
    tensors = dict(weights.tensors)
    if tables := [tensors.pop(f"{n}.0.weight") for n in GATE_TABLES if f"{n}.0.weight" in tensors]:
        tensors["emb.0.weight"] = np.concatenate(tables, 1)
    return replace(weights, tensors=tensors).packed(_native_name, bits)


def _native_name(name: str) -> str:
    for theirs, ours in _NATIVE.items():
        name = name.replace(theirs, ours)
    return name
