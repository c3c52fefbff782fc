"""Block drafters that draft: layers behind the target fill a block in one call, its head says what may stand there.

`config.py` has the formulas; `csrc/drafters/block_network.cpp` computes them, with int8 activations. The block is
filled when a draft needs it first; each step after that adds what the token before says.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.drafters.base.contract import DrafterBytes
from forerun.drafters.base.networks.deferred import Deferred
from forerun.drafters.base.networks.native import TrainedNetwork
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.dflash.config import CONFIDENCE, MARKOV_IN, MARKOV_OUT, BlockConfig
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native

BlockWeights = TrainedNetwork[BlockConfig]
_NATIVE = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "mlp_norm",
    "fc": "fc",
    "hidden_norm": "hidden_norm",
    "norm": "norm",
    MARKOV_IN: "markov.in",
    MARKOV_OUT: "markov.out",
    CONFIDENCE: "confidence",
}
_LAYER = re.compile(r"layers\.(\d+)\.")


class BlockNetwork(SlotNetwork["_native.BlockNetwork"]):
    """Runs the layers on the kernels. Raises LoadError."""

    def __init__(
        self, weights: BlockWeights, model: Model, num_slots: int, max_len: int, bits: int
    ) -> None:
        """Make the kernels, with a cache of so many slots of `max_len` rows."""
        c = weights.config
        named = partial(_native_name, len(c.windows))
        super().__init__(
            model,
            lambda target: _kernels(c, target, num_slots, max_len),
            _with_confidence(weights).packed(named, bits),
            layers=c.layers,
            num_slots=num_slots,
            row_nbytes=4 * len(c.windows) * c.num_key_value_heads * c.head_dim,  # fp16
            eps=c.rms_norm_eps,
            temperatures=weights.temperatures,
            takes_head=True,
        )
        num_tokens = c.vocab_size if weights.tokens is None else len(weights.tokens)
        self._guess_nbytes = 4 * c.num_guesses * (num_tokens + c.hidden_size)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, keys and values of the rows, and what the head said of each block."""
        counted = super().memory(num_seqs, max_len)
        return counted._replace(tables=counted.tables + num_seqs * self._guess_nbytes)


def _with_confidence(weights: BlockWeights) -> BlockWeights:
    """Return the weights with the confidence head as one vector (D + r + 1,), its bias last."""
    c = weights.config
    if not c.confidence_size:
        return weights
    tensors = weights.tensors

    def vector() -> Floats:
        row = tensors[f"{CONFIDENCE}.weight"][0]
        unread = c.hidden_size + c.markov_rank - c.confidence_size
        return np.concatenate([row, np.zeros(unread, np.float32), tensors[f"{CONFIDENCE}.bias"]])

    names = [name for name in tensors if not name.startswith(CONFIDENCE)]
    readers = {name: partial(tensors.__getitem__, name) for name in names}
    return BlockWeights(
        c,
        Deferred(readers | {f"{CONFIDENCE}.weight": vector}),
        weights.tokens,
        weights.temperatures,
    )


def _native_name(num_layers: int, name: str) -> str:
    layer = _LAYER.match(name)
    rest = _NATIVE[name[layer.end() if layer else 0 :].removesuffix(".weight")]
    return f"{layer[1]}.{rest}" if layer and num_layers > 1 else rest


def _kernels(
    c: BlockConfig, target: NativeDecoder, num_slots: int, max_len: int
) -> _native.BlockNetwork:
    from forerun import _native

    kernels = _native.BlockNetwork(
        target.runtime,
        target.native,
        len(c.layers),
        c.intermediate_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.block_size,
        c.sample_from_anchor,
        c.mask_token_id,
        c.markov_rank,
        c.windows,
        c.bidirectional,
        num_slots,
        max_len,
    )
    kernels.set_rope(c.rope.inverse_frequencies())
    return kernels
