"""EAGLE-3 networks that draft: one decoder layer behind the target, with keys and values of its own.

`config.py` has the formulas; `csrc/drafters/eagle_network.cpp` computes them, with int8 activations.

R rows, D width, V' tokens of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.model.backends.native import NativeDecoder

if TYPE_CHECKING:
    from forerun import _native


def eagle_network(
    options: NetworkOptions, trained: TrainedNetwork[Eagle3Config], target: Target
) -> SlotNetwork[_native.EagleNetwork]:
    """Make the kernels of the layer. Raises LoadError."""
    from forerun import _native

    c = trained.config

    def kernels(decoder: NativeDecoder) -> _native.EagleNetwork:
        return _native.EagleNetwork(
            decoder.runtime,
            decoder.native,
            c.hidden_size,
            c.state_width,
            c.intermediate_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.norm_output,
            c.norm_before_residual,
            target.max_num_seqs,
            target.max_len,
        )

    return SlotNetwork(
        options,
        target,
        kernels,
        trained,
        c.rms_norm_eps,
        layers=c.layers,
        rope=c.rope,
        row_nbytes=4 * c.num_key_value_heads * c.head_dim,  # fp16
    )
