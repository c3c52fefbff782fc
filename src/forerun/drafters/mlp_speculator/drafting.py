"""MLP speculators that draft: `config.py` has the formulas, csrc/drafters/recurrent_network.cpp computes them.

R rows of a step, D width of the target, p inner width, V' tokens of the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.native import NativeNetwork
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.mlp_speculator.config import EPS, GATE_TABLES, MLPSpeculatorConfig
from forerun.model.backends.native import NativeDecoder
from forerun.weights.rtn import HEAD_BITS
from forerun.weights.stored import stored_floats

if TYPE_CHECKING:
    from forerun import _native


def recurrent_network(
    options: NetworkOptions, trained: TrainedNetwork[MLPSpeculatorConfig], target: Target
) -> NativeNetwork[_native.RecurrentNetwork]:
    """Make the kernels of a recurrent network, the tables of an LSTM's gates side by side. Raises LoadError."""
    from forerun import _native

    config, tensors = trained.config, dict(trained.tensors)
    if tables := [tensors.pop(name).dequantize() for name in GATE_TABLES if name in tensors]:
        tensors["emb.0"] = stored_floats("emb.0", np.concatenate(tables, 1))

    sizes = config.inner_dim, config.n_predict, config.max_depth
    shape = (*sizes, config.cell == "lstm", config.scale_input)

    def kernels(decoder: NativeDecoder) -> _native.RecurrentNetwork:
        return _native.RecurrentNetwork(decoder.runtime, decoder.native, *shape)

    whole = replace(trained, tensors=tensors)
    on_device = ("recurrent", *shape)
    network = NativeNetwork(options, target.model, kernels, whole, EPS, on_device)
    if options.bits in HEAD_BITS:
        network.native.keep_mapped()
    return network
