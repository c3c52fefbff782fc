"""EAGLE-3 networks that draft: one decoder layer behind the target, with keys and values of its own.

`config.py` has the formulas; `csrc/drafters/eagle_network.cpp` computes them, with int8 activations.

R rows, D width, V' tokens of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.drafters.base.networks.native import TrainedNetwork
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native

EagleWeights = TrainedNetwork[Eagle3Config]
_NATIVE = {
    "fc.weight": "fc",
    "midlayer.self_attn.q_proj.weight": "q",
    "midlayer.self_attn.k_proj.weight": "k",
    "midlayer.self_attn.v_proj.weight": "v",
    "midlayer.self_attn.o_proj.weight": "o",
    "midlayer.mlp.gate_proj.weight": "gate",
    "midlayer.mlp.up_proj.weight": "up",
    "midlayer.mlp.down_proj.weight": "down",
    "lm_head.weight": "head.0",
    "embed_tokens.weight": "emb.0",
    "midlayer.input_layernorm.weight": "input_norm",
    "midlayer.hidden_norm.weight": "hidden_norm",
    "midlayer.post_attention_layernorm.weight": "mlp_norm",
    "midlayer.self_attn.q_norm.weight": "q_norm",
    "midlayer.self_attn.k_norm.weight": "k_norm",
    "norm.weight": "norm",
    "input_norm.weight": "fc_norm",
    "fc_norm.0.weight": "fc_norm.0",
    "fc_norm.1.weight": "fc_norm.1",
    "fc_norm.2.weight": "fc_norm.2",
}


class EagleNetwork(SlotNetwork["_native.EagleNetwork"]):
    """Runs the layer on the kernels. Raises LoadError."""

    def __init__(
        self, weights: EagleWeights, model: Model, num_slots: int, max_len: int, bits: int
    ) -> None:
        """Make the kernels, with a cache of so many slots of `max_len` rows."""
        c = weights.config
        super().__init__(
            model,
            lambda target: _kernels(c, target, num_slots, max_len),
            weights.packed(_NATIVE.__getitem__, bits),
            layers=c.layers,
            num_slots=num_slots,
            row_nbytes=4 * c.num_key_value_heads * c.head_dim,  # fp16
            eps=c.rms_norm_eps,
            temperatures=weights.temperatures,
            takes_head=c.target_head,
        )


def _kernels(
    c: Eagle3Config, target: NativeDecoder, num_slots: int, max_len: int
) -> _native.EagleNetwork:
    from forerun import _native

    kernels = _native.EagleNetwork(
        target.runtime,
        target.native,
        c.hidden_size,
        c.state_width,
        c.intermediate_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.norm_output,
        c.norm_before_residual,
        num_slots,
        max_len,
    )
    kernels.set_rope(c.rope.inverse_frequencies())
    return kernels
