"""What the families share: the protocol of an arch module, tensor names, and how fused tensors are cut.

Metadata is read in `_settings.py`, rotary settings in `_rope.py`, Llama-like configs in `_llama_like.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

Kind = Literal["hf", "gguf"]
Rows = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a canonical weight lies: a tensor of the checkpoint, without `.weight`, and its rows if not all."""

    name: str
    rows: Rows | None = None


class Arch(Protocol):
    """What a module of this folder exports."""

    HF_ARCHITECTURES: tuple[str, ...]
    GGUF_ARCHITECTURES: tuple[str, ...]

    def config_from_hf(self, checkpoint: Checkpoint) -> ModelConfig:
        """The config of a Hugging Face folder."""
        ...

    def config_from_gguf(self, checkpoint: Checkpoint) -> ModelConfig:
        """The config of a GGUF file."""
        ...

    def source(self, name: str, config: ModelConfig, kind: Kind) -> TensorSource:
        """Where the canonical weight `name` (of a layer: without `layers.<i>.`) lies; `{i}` stands for the layer."""
        ...


HF_NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "model.layers.{i}.input_layernorm",
    "q": "model.layers.{i}.self_attn.q_proj",
    "k": "model.layers.{i}.self_attn.k_proj",
    "v": "model.layers.{i}.self_attn.v_proj",
    "o": "model.layers.{i}.self_attn.o_proj",
    "q_norm": "model.layers.{i}.self_attn.q_norm",
    "k_norm": "model.layers.{i}.self_attn.k_norm",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "gate": "model.layers.{i}.mlp.gate_proj",
    "up": "model.layers.{i}.mlp.up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
}

GGUF_NAMES: Mapping[str, str] = {
    "embed": "token_embd",
    "positions": "position_embd",
    "norm": "output_norm",
    "head": "output",
    "attn_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "o": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "mlp_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
}


def plain_source(name: str, kind: Kind) -> TensorSource:
    """A weight that lies alone in a tensor of the usual name."""
    return TensorSource((HF_NAMES if kind == "hf" else GGUF_NAMES)[name])


def permuted_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """As `plain_source`, but GGUF interleaves the halves of a q or k head: row 2j + half is ours half * E/2 + j."""
    if kind == "hf" or name not in ("q", "k"):
        return plain_source(name, kind)
    num_heads = config.num_heads if name == "q" else config.num_kv_heads
    order = np.arange(num_heads * config.head_dim, dtype=np.int64)
    order = order.reshape(num_heads, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return TensorSource(GGUF_NAMES[name], order)


def fused_rows(name: str, config: ModelConfig) -> slice | None:
    """Rows of q, k, v in a fused matrix of all three, of gate and up in a fused matrix of both."""
    q_width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    inner = config.intermediate_size
    return {
        "q": slice(0, q_width),
        "k": slice(q_width, q_width + kv_width),
        "v": slice(q_width + kv_width, q_width + 2 * kv_width),
        "gate": slice(0, inner),
        "up": slice(inner, 2 * inner),
    }.get(name)
