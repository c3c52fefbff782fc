"""ModelConfig: everything in which the supported families differ, as plain numbers and choices.

`arch/<family>.py` fills it from a Hugging Face `config.json` or from GGUF metadata; the decoder and
the kernels read nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding, rotate-half layout.

    `factors` (rotary_dim / 2,) divide the inverse frequencies, whatever the scaling's
    name: linear, llama3, yarn and longrope all come down to them, and to `attention_factor` on cos and sin.
    """

    theta: float
    rotary_dim: int
    factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer: pre-norm blocks, one attention and one MLP each."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    gated_mlp: bool = True
    rope: RopeConfig | None = None
    learned_position_offset: int | None = None
    """Row of the position table that position 0 reads (OPT: 2); None without learned positions."""
    qk_norm: bool = False
    tied_head: bool = False
    sliding_window: int | None = None
    """A query sees at most this many positions, itself included."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_scale: float | None = None
    """Scale of the attention scores; None is head_dim ** -0.5."""
    logits_divisor: float = 1.0

    @property
    def scale(self) -> float:
        """The scale of attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical names and shapes of the weights; a bias is `<name>.bias`, (out,), if the checkpoint has it.

    Linear weights are (out, in). `head` is absent when tied to `embed`.
    """
    width, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, width), "norm": (width,)}
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, width)
    if config.learned_position_offset is not None:
        shapes["positions"] = (config.max_position + config.learned_position_offset, width)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "q": (q_width, width),
        "k": (kv_width, width),
        "v": (kv_width, width),
        "o": (width, q_width),
        "mlp_norm": (width,),
        "up": (inner, width),
        "down": (width, inner),
    }
    if config.gated_mlp:
        layer["gate"] = (inner, width)
    if config.qk_norm:
        layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def sizes_of(name: str) -> tuple[str, ...]:
    """Return the fields that decide on the shape of a weight of `weight_shapes`, for messages."""
    short = name.rpartition(".")[2]
    heads = {"q": "num_heads", "o": "num_heads", "k": "num_kv_heads", "v": "num_kv_heads"}
    if short in heads:
        return heads[short], "head_dim", "hidden_size"
    others = {"embed": "vocab_size", "head": "vocab_size", "positions": "max_position"}
    others |= dict.fromkeys(("up", "gate", "down"), "intermediate_size")
    if short in others:
        return others[short], "hidden_size"
    return ("head_dim",) if short in ("q_norm", "k_norm") else ("hidden_size",)


def flops_per_token(config: ModelConfig, context: int = 0) -> int:
    """Return floating-point operations of one row that sees `context` positions, head included: two a multiply-add."""
    matrices = sum(
        math.prod(shape)
        for name, shape in weight_shapes(config).items()
        if len(shape) == 2 and name not in ("embed", "positions")
    )
    head = config.vocab_size * config.hidden_size if config.tied_head else 0
    seen = context if config.sliding_window is None else min(context, config.sliding_window)
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * seen
    return 2 * (matrices + head + attention)
