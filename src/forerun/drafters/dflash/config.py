"""Block drafters: DFlash (Chen et al., arXiv 2602.06036) and DSpark (Cheng et al., arXiv 2607.05147).

A block is the last token and B - 1 masks. A few decoder layers fill it in one call:

    g_t = rms(fc [h_a; h_b; ...])            of the target's states at t, the outputs of some of its layers
    k_t, v_t = W_k g_t, W_v g_t                in each layer, kept
    x = e(token) or e(mask)                    a row of a decoder from here on: norms of heads, rotary
                                               positions, a gated MLP; it sees all k_t and its whole block
    logits = head rms(x)                       embedding and head are the target's

Row k predicts the token k places behind the last one, or, with `sample_from_anchor`, k + 1. DSpark adds to the logits
what the token before says, W_2 w_1[token] (`markov_rank` wide), and sigmoid(c [rms(x); w_1[token]]), how much of its
probabilities a row is worth.

D width, T aux layers, H heads, G kv heads, E head dim, V' tokens of the head, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.model.config import RopeConfig

MARKOV_IN, MARKOV_OUT = "markov_head.markov_w1", "markov_head.markov_w2"
CONFIDENCE = "confidence_head.proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Shapes; names are those of Qwen 3 configurations, whose layers these are."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeConfig
    rms_norm_eps: float
    layers: tuple[int, ...]
    """Of the target, whose outputs are read, ascending, counted from 0: `Features(layers=...)`."""
    block_size: int
    mask_token_id: int
    sample_from_anchor: bool
    windows: tuple[int, ...]
    """By layer: how many rows before the block are seen, 0: all."""
    bidirectional: tuple[bool, ...]
    """By layer: whether a row of the block sees those behind it."""
    markov_rank: int = 0
    confidence_size: int = 0
    """What the confidence head reads: D, or D + r; 0: there is none."""

    @property
    def num_guesses(self) -> int:
        """Return how many tokens a block guesses."""
        return self.block_size - (not self.sample_from_anchor)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List the network's tensors by name."""
        width, inner = self.hidden_size, self.intermediate_size
        heads = self.num_attention_heads * self.head_dim
        groups = self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc": (width, len(self.layers) * width),
            "hidden_norm": (width,),
            "norm": (width,),
        }
        for i in range(len(self.windows)):
            shapes |= {
                f"layers.{i}.self_attn.q_proj": (heads, width),
                f"layers.{i}.self_attn.k_proj": (groups, width),
                f"layers.{i}.self_attn.v_proj": (groups, width),
                f"layers.{i}.self_attn.o_proj": (width, heads),
                f"layers.{i}.self_attn.q_norm": (self.head_dim,),
                f"layers.{i}.self_attn.k_norm": (self.head_dim,),
                f"layers.{i}.mlp.gate_proj": (inner, width),
                f"layers.{i}.mlp.up_proj": (inner, width),
                f"layers.{i}.mlp.down_proj": (width, inner),
                f"layers.{i}.input_layernorm": (width,),
                f"layers.{i}.post_attention_layernorm": (width,),
            }
        if self.markov_rank:
            shapes[MARKOV_IN] = (self.vocab_size, self.markov_rank)
            shapes[MARKOV_OUT] = (self.draft_vocab_size, self.markov_rank)
        if self.confidence_size:
            shapes[CONFIDENCE] = (1, self.confidence_size)
        named = {f"{name}.weight": shape for name, shape in shapes.items()}
        return named | ({f"{CONFIDENCE}.bias": (1,)} if self.confidence_size else {})
