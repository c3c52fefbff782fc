"""EAGLE-3 (Li et al., arXiv 2503.01840) as EAGLE-3.1 (arXiv 2605.09992) has it: one decoder layer behind the target.

Row t stands for token t+1 seen with the target's states at t, and predicts token t+2:

    g = fc [n(h_low); n(h_mid); n(h_high)]       n is `fc_norm.i`, an RMS norm, with `fc_norm`, else nothing;
                                                 `norm_before_fc`: one norm, `input_norm`, of the three as one vector
    x = [rms(e(token)) ; rms(g)]                   `input_layernorm`, `hidden_norm`: 2 D wide, read by q, k and v
    r = g + attention(x);   a = r + mlp(rms(r))    `post_attention_layernorm`
    logits = lm_head norm(a)

A drafted row has no target states: its g is the a of the row before, or norm(a) with `norm_output`. Keys and values of
rows with target states are kept; those of drafted rows are used within the draft only.

D hidden width, L rows, S rows before them, H heads, G kv heads, E head dim, V' draft vocabulary, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.model.arch.base.source import Kind
from forerun.model.config import RopeConfig

NUM_LAYERS = 3
"""Layers of the target whose outputs are read."""
_LAYER, _BLOCK = "midlayer.", "blk.0."
NAMES = {
    "fc": ("fc", "fc"),
    "fc_norm": ("input_norm", "enc.output_norm"),
    **{f"fc_norm.{i}": (f"fc_norm.{i}", "") for i in range(NUM_LAYERS)},
    "norm": ("norm", "output_norm"),
    "head.0": ("lm_head", "output"),
    "emb.0": ("embed_tokens", "token_embd"),
    "input_norm": (f"{_LAYER}input_layernorm", f"{_BLOCK}attn_norm"),
    "hidden_norm": (f"{_LAYER}hidden_norm", f"{_BLOCK}attn_norm_2"),
    "mlp_norm": (f"{_LAYER}post_attention_layernorm", f"{_BLOCK}ffn_norm"),
    "q": (f"{_LAYER}self_attn.q_proj", f"{_BLOCK}attn_q"),
    "k": (f"{_LAYER}self_attn.k_proj", f"{_BLOCK}attn_k"),
    "v": (f"{_LAYER}self_attn.v_proj", f"{_BLOCK}attn_v"),
    "o": (f"{_LAYER}self_attn.o_proj", f"{_BLOCK}attn_output"),
    "q_norm": (f"{_LAYER}self_attn.q_norm", ""),
    "k_norm": (f"{_LAYER}self_attn.k_norm", ""),
    "gate": (f"{_LAYER}mlp.gate_proj", f"{_BLOCK}ffn_gate"),
    "up": (f"{_LAYER}mlp.up_proj", f"{_BLOCK}ffn_up"),
    "down": (f"{_LAYER}mlp.down_proj", f"{_BLOCK}ffn_down"),
}
"""What folders and GGUF files call the tensors; these have no norms but those of whole rows."""


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Shapes; names are those of Llama configurations."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    layers: tuple[int, ...]
    """Whose outputs are read, ascending, counted from 0: `Features(layers=...)`."""
    target_hidden_size: int = 0
    """Width of the states that are read; 0 is `hidden_size`."""
    fc_norm: bool = True
    norm_before_fc: bool = False
    norm_output: bool = True
    qk_norm: bool = False
    rope_factors: tuple[float, ...] | None = None
    """Divisors of the rotary frequencies (E / 2,), as `RopeConfig` has them; None: none."""
    norm_before_residual: bool = False
    """The residual starts from rms(g) instead of g."""
    target_embedding: bool = True
    target_head: bool = False
    """The head's rows are the target's; else `lm_head` (V', D)."""

    @property
    def rope(self) -> RopeConfig:
        """Return the rotary embedding of queries and keys."""
        return RopeConfig(self.rope_theta, self.head_dim, self.rope_factors)

    @property
    def state_width(self) -> int:
        """Return the width of one state of the target."""
        return self.target_hidden_size or self.hidden_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List the tensors by the kernels' names."""
        width, source = self.hidden_size, 2 * self.hidden_size
        states = NUM_LAYERS * self.state_width
        heads = self.num_attention_heads * self.head_dim
        groups = self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc": (width, states),
            "q": (heads, source),
            "k": (groups, source),
            "v": (groups, source),
            "o": (width, heads),
            "gate": (self.intermediate_size, width),
            "up": (self.intermediate_size, width),
            "down": (width, self.intermediate_size),
            "input_norm": (width,),
            "hidden_norm": (width,),
            "mlp_norm": (width,),
            "norm": (width,),
        }
        if self.qk_norm:
            shapes |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}": (self.state_width,) for i in range(NUM_LAYERS)}
        if self.norm_before_fc:
            shapes["fc_norm"] = (states,)
        if not self.target_embedding:
            shapes["emb.0"] = (self.vocab_size, width)
        if not self.target_head:
            shapes["head.0"] = (self.draft_vocab_size, width)
        return shapes

    def file_name(self, name: str, kind: Kind = "hf") -> str:
        """Return what a folder, or a GGUF file, calls a tensor."""
        return f"{NAMES[name][kind == 'gguf']}.weight"
