"""What the families share: the protocol of an arch module, tensor names, and how fused tensors are cut.

Metadata is read in `settings.py`, rotary settings in `rope.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from forerun.model.arch.base.rope import rope_from_gguf, rope_from_hf
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

if TYPE_CHECKING:
    from forerun.weights.stored import StoredTensor

Kind = Literal["hf", "gguf"]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a canonical weight lies: a tensor of the checkpoint, without `.weight`."""

    name: str
    part: slice | None = None
    """Its rows, if it lies in a fused tensor of `num_rows` rows."""
    num_rows: int = 0
    is_interleaved: bool = False
    """The rows of each head are 0, E/2, 1, E/2 + 1, ... instead of 0, 1, 2, ... (E is the head dimension)."""

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the checkpoint's tensor, from that of the weight or of its bias."""
        return shape if self.part is None else (self.num_rows, *shape[1:])

    def take(self, stored: StoredTensor, config: ModelConfig) -> StoredTensor:
        """Return the weight or the bias from the checkpoint's tensor, which has the shape `whole`."""
        if self.part is not None:
            return stored.rows(self.part)
        if not self.is_interleaved:
            return stored
        order = np.arange(stored.shape[0], dtype=np.int64)
        return stored.rows(order.reshape(-1, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1))


class Arch(Protocol):
    """What a module of this folder exports."""

    HF_ARCHITECTURES: tuple[str, ...]
    GGUF_ARCHITECTURES: tuple[str, ...]

    def config(self, settings: Settings) -> ModelConfig:
        """Return the config of a checkpoint. Raises LoadError."""
        ...

    def source(self, name: str, config: ModelConfig, kind: Kind) -> TensorSource:
        """Return where the weight `name` (of a layer: without `layers.<i>.`) lies; `{i}` stands for the layer."""
        ...


_NAMES: Mapping[str, Mapping[Kind, str]] = {
    name: {"hf": hf, "gguf": gguf}
    for name, hf, gguf in (
        ("embed", "model.embed_tokens", "token_embd"),
        ("positions", "", "position_embd"),
        ("norm", "model.norm", "output_norm"),
        ("head", "lm_head", "output"),
        ("attn_norm", "model.layers.{i}.input_layernorm", "blk.{i}.attn_norm"),
        ("q", "model.layers.{i}.self_attn.q_proj", "blk.{i}.attn_q"),
        ("k", "model.layers.{i}.self_attn.k_proj", "blk.{i}.attn_k"),
        ("v", "model.layers.{i}.self_attn.v_proj", "blk.{i}.attn_v"),
        ("o", "model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output"),
        ("q_norm", "model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm"),
        ("k_norm", "model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm"),
        ("mlp_norm", "model.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
        ("gate", "model.layers.{i}.mlp.gate_proj", "blk.{i}.ffn_gate"),
        ("up", "model.layers.{i}.mlp.up_proj", "blk.{i}.ffn_up"),
        ("down", "model.layers.{i}.mlp.down_proj", "blk.{i}.ffn_down"),
    )
}


def plain_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return a weight that lies alone in a tensor of the usual name. It is an `Arch.source`."""
    return TensorSource(_NAMES[name][kind])


def interleaved_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return a plain source, but GGUF interleaves the halves of a q or k head: row 2j + half is ours half * E/2 + j."""
    is_interleaved = kind == "gguf" and name in ("q", "k")
    return TensorSource(_NAMES[name][kind], is_interleaved=is_interleaved)


def fused_source(name: str, config: ModelConfig, fused: str) -> TensorSource:
    """Return q, k or v in a fused matrix of all three, gate or up in a fused matrix of both."""
    q_width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    parts = {"q": q_width, "k": kv_width, "v": kv_width}
    if name not in parts:
        parts = dict.fromkeys(("gate", "up"), config.intermediate_size)
    names = list(parts)
    start = sum(parts[n] for n in names[: names.index(name)])
    return TensorSource(fused, slice(start, start + parts[name]), sum(parts.values()))


def llama_like(settings: Settings, family: str, **differences: Any) -> ModelConfig:
    """Return a config with RMS norm, rotary positions, a gated MLP, and the family's `differences`.

    Raises LoadError for what is missing, wrong or not supported.
    """
    is_gguf = settings.is_gguf
    if is_gguf:
        settings.reject("expert_count", 0)
    sizes = settings.sizes()
    if is_gguf:
        settings.reject("attention.value_length", sizes["head_dim"])
    norm_eps = "attention.layer_norm_rms_epsilon" if is_gguf else "rms_norm_eps"
    return ModelConfig(
        family=family,
        **sizes,
        norm_eps=settings.number(norm_eps, low=1e-15, high=1),
        activation="silu" if is_gguf else settings.activation("hidden_act"),
        rope=(rope_from_gguf if is_gguf else rope_from_hf)(settings, sizes["head_dim"]),
        tied_head=settings.is_tied(),
        sliding_window=settings.window(),
        **differences,
    )
