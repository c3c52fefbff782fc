"""EAGLE-3 networks that draft: one decoder layer behind the target, with keys and values of its own.

`config.py` has the formulas; `csrc/drafters/eagle_network.cpp` computes them, with int8 activations.

R rows, D width, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.arrays import Floats, Ids
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafting.best_first import MAX_STEPS, GuessTree
from forerun.drafting.networks.native import fill, floats, load_errors, native_target, packed
from forerun.drafting.tree_noise import TreeNoise, native_noises
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun._native import TextNGramModel

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


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """A network's configuration and its tensors by the names of `Eagle3`."""

    config: Eagle3Config
    tensors: Mapping[str, Floats]
    tokens: Ids | None = None
    """The tokens of the head (V',), ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become chances."""


class EagleNetwork:
    """Drafts with the target's threads, its embedding, a copy of the rows of its head.

    Raises LoadError naming the weight that is wrong, or for a target without native kernels.
    """

    def __init__(
        self, weights: EagleWeights, model: Model, num_slots: int, max_len: int, bits: int
    ) -> None:
        from forerun import _native

        c, target = weights.config, native_target(model)
        with load_errors():
            network = _native.EagleNetwork(
                target.runtime,
                target.native,
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
            network.set_rope(c.rope.inverse_frequencies())
            fill(
                network,
                packed(
                    {_NATIVE[name]: tensor for name, tensor in weights.tensors.items()},
                    weights.tokens,
                    bits,
                ),
                target,
                eps=c.rms_norm_eps,
                temperatures=weights.temperatures,
                takes_head=c.target_head,
            )
        self._native = network
        self._row_nbytes = 4 * c.num_key_value_heads * c.head_dim

    def clear(self, slot: int) -> None:
        """Forget the rows of a slot."""
        self._native.clear(slot)

    def reuse(self, slot: int, source: int, rows: int) -> None:
        """Begin a slot with the first rows of a slot, which may be the same; `feed` goes on from there."""
        self._native.reuse(slot, source, rows)

    def feed(self, slot: int, tokens: Sequence[int], states: Floats) -> None:
        """Add rows: tokens, and the target's states (R, 3 x width) before them. Raises IndexError beyond `max_len`."""
        self._native.feed(slot, tokens, floats(states))

    def draft(
        self,
        slots: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        ngrams: TextNGramModel | None = None,
        min_doubt: float = 0.0,
        noises: Sequence[TreeNoise | None] = (),
    ) -> list[GuessTree]:
        """Grow a tree below the last token that was fed of each slot; `ngrams` is what is known of each text."""
        limits = (min(num_steps, MAX_STEPS), min_chance)
        native = native_noises(noises)
        return self._native.draft(slots, num_nodes, *limits, ngrams, min_doubt, native)

    def nbytes(self) -> int:
        """Count the packed weights, without the rows of the slots."""
        return self._native.nbytes()

    def row_nbytes(self) -> int:
        """Count a row in fp16."""
        return self._row_nbytes
