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

from forerun.model.arch.base.source import Kind
from forerun.model.config import RopeConfig

_NAMES = {
    "fc": ("fc", "fc"),
    "hidden_norm": ("hidden_norm", "enc.output_norm"),
    "norm": ("norm", "output_norm"),
    "markov.in": ("markov_head.markov_w1", "markov_w1"),
    "markov.out": ("markov_head.markov_w2", "markov_w2"),
    "confidence": ("confidence_head.proj", "conf_proj"),
}
_OF_LAYERS = {
    "input_norm": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}
"""What folders and GGUF files call the tensors."""


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
    has_confidence: bool = False

    @property
    def state_width(self) -> int:
        """Return the width of one state of the target."""
        return self.hidden_size

    @property
    def num_guesses(self) -> int:
        """Return how many tokens a block guesses."""
        return self.block_size - (not self.sample_from_anchor)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List the tensors by the kernels' names; those of several layers begin with the layer's number."""
        width, inner = self.hidden_size, self.intermediate_size
        heads = self.num_attention_heads * self.head_dim
        groups = self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc": (width, len(self.layers) * width),
            "hidden_norm": (width,),
            "norm": (width,),
        }
        of_layers: dict[str, tuple[int, ...]] = {
            "q": (heads, width),
            "k": (groups, width),
            "v": (groups, width),
            "o": (width, heads),
            "q_norm": (self.head_dim,),
            "k_norm": (self.head_dim,),
            "gate": (inner, width),
            "up": (inner, width),
            "down": (width, inner),
            "input_norm": (width,),
            "mlp_norm": (width,),
        }
        for i in range(len(self.windows)):
            prefix = f"{i}." if len(self.windows) > 1 else ""
            shapes |= {prefix + name: shape for name, shape in of_layers.items()}
        if self.markov_rank:
            shapes["markov.in"] = (self.vocab_size, self.markov_rank)
            shapes["markov.out"] = (self.draft_vocab_size, self.markov_rank)
        if self.has_confidence:
            shapes["confidence"] = (width + self.markov_rank + 1,)
        return shapes

    def file_name(self, name: str, kind: Kind = "hf") -> str:
        """Return what a folder, or a GGUF file, calls a tensor."""
        which = 0 if kind == "hf" else 1
        if name in _NAMES:
            return f"{_NAMES[name][which]}.weight"
        layer, _, part = name.rpartition(".")
        return f"{('layers', 'blk')[which]}.{layer or 0}.{_OF_LAYERS[part][which]}.weight"
