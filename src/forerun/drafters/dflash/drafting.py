"""Block drafters that draft: layers behind the target fill a block in one call, its head says what may stand there.

`config.py` has the formulas; `csrc/drafters/block_network.cpp` computes them, with int8 activations. The block is
filled when a draft needs it first; each step after that adds what the token before says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.dflash.config import BlockConfig
from forerun.model.backends.native import NativeDecoder

if TYPE_CHECKING:
    from forerun import _native


def block_network(
    options: NetworkOptions, trained: TrainedNetwork[BlockConfig], target: Target
) -> SlotNetwork[_native.BlockNetwork]:
    """Make the kernels of the layers. Raises LoadError."""
    from forerun import _native

    c = trained.config
    num_tokens = c.vocab_size if trained.tokens is None else len(trained.tokens)

    def kernels(decoder: NativeDecoder) -> _native.BlockNetwork:
        network = _native.BlockNetwork(
            decoder.runtime,
            decoder.native,
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
            target.max_num_seqs,
            target.max_len,
        )
        network.set_rope(c.rope.inverse_frequencies())
        return network

    return SlotNetwork(
        options,
        target,
        kernels,
        trained,
        c.rms_norm_eps,
        layers=c.layers,
        row_nbytes=4 * len(c.windows) * c.num_key_value_heads * c.head_dim,  # fp16
        slot_nbytes=4 * c.num_guesses * (num_tokens + c.hidden_size),  # what the head said
    )
