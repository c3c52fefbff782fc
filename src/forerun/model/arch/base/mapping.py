"""What the families share: the protocol of an arch module, tensor names, and the llama-like description.

Metadata is read in `settings.py`, rotary settings in `rope.py`; `source.py` cuts tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from forerun.core.errors import LoadError
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import Activation, ExpertsConfig, LayerConfig, ModelConfig


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
        (
            "attn_out_norm",
            "model.layers.{i}.post_attention_layernorm",
            "blk.{i}.post_attention_norm",
        ),
        ("mlp_out_norm", "model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm"),
        ("router", "model.layers.{i}.mlp.gate", "blk.{i}.ffn_gate_inp"),
        ("gate", "model.layers.{i}.mlp.gate_proj", "blk.{i}.ffn_gate"),
        ("up", "model.layers.{i}.mlp.up_proj", "blk.{i}.ffn_up"),
        ("down", "model.layers.{i}.mlp.down_proj", "blk.{i}.ffn_down"),
    )
}


def plain_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return a weight that lies alone in a tensor of the usual name. It is an `Arch.source`."""
    if name.startswith("expert_"):
        return expert_source(name, config, kind)
    if name == "sinks" and kind == "hf":
        return TensorSource("model.layers.{i}.self_attn.sinks", suffixes=("", ""))
    if name == "mlp_norm" and kind == "hf" and config.norms == "both":
        return TensorSource("model.layers.{i}.pre_feedforward_layernorm")
    return TensorSource(_NAMES[name][kind])


def interleaved_source(
    name: str, config: ModelConfig, kind: Kind, kinds: Sequence[Kind] = ("gguf",)
) -> TensorSource:
    """Return a plain source, but files of some `kinds` have the two features of each pair that turns side by side."""
    is_interleaved = kind in kinds and name in ("q", "k")
    return replace(plain_source(name, config, kind), is_interleaved=is_interleaved)


def fused_source(name: str, config: ModelConfig, fused: str) -> TensorSource:
    """Return q, k or v in a fused matrix of all three, gate or up in a fused matrix of both."""
    q_width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    parts = {"q": q_width, "k": kv_width, "v": kv_width}
    if name not in parts:
        parts = dict.fromkeys(("gate", "up"), config.intermediate_size)
    names = list(parts)
    start = sum(parts[n] for n in names[: names.index(name)])
    return TensorSource(fused, slice(start, start + parts[name]), sum(parts.values()))


def gate_up_source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return gate or up, which lie in one matrix, by its usual name."""
    fused = "model.layers.{i}.mlp.gate_up_proj" if kind == "hf" else "blk.{i}.ffn_up"
    return fused_source(name, config, fused)


def expert_source(
    name: str,
    config: ModelConfig,
    kind: Kind,
    each: str = "model.layers.{i}.mlp.experts.{e}.",
    fused: str = "model.layers.{i}.mlp.experts.",
    parts: Mapping[str, str] | None = None,
) -> TensorSource:
    """Return the weights of all experts: of a Hugging Face folder a tensor `each`, or one `fused` tensor for all.

    `parts` are the last names of gate, up and down. GGUF has one tensor; older files have one an expert.
    """
    part, experts = name.removeprefix("expert_"), experts_of(config)
    count, inner = experts.num_experts, experts.intermediate_size
    if kind == "gguf":
        older = TensorSource(f"blk.{{i}}.ffn_{part}.{{e}}", num_experts=count)
        return TensorSource(f"blk.{{i}}.ffn_{part}_exps", num_experts=count, otherwise=older)
    stacked = TensorSource(
        f"{fused}down_proj",
        num_experts=count,
        may_be_transposed=True,
        suffixes=("", "_bias"),
    )
    if part != "down":
        rows = slice(0, inner) if part == "gate" else slice(inner, 2 * inner)
        stacked = replace(stacked, name=f"{fused}gate_up_proj", part=rows, num_rows=2 * inner)
    last = f"{part}_proj" if parts is None else parts[part]
    return TensorSource(each + last, num_experts=count, otherwise=stacked)


def experts_of(config: ModelConfig) -> ExpertsConfig:
    """Return the experts of a model's layers, which are alike in all that have them."""
    return next(layer.experts for layer in config.layers if layer.experts is not None)


def read_experts(
    settings: Settings,
    *,
    size: str = "moe_intermediate_size",
    active: str = "num_experts_per_tok",
    count: str | None = None,
    renormalized: bool = True,
    is_scaled: bool = False,
) -> ExpertsConfig | None:
    """Read the numbers of experts, None if there are none; Hugging Face's keys are `size`, `count` and `active`.

    Raises LoadError, also for weights that a GGUF scales, but with `is_scaled`.
    """
    if count is None:
        is_local = settings.get("num_local_experts") is not None
        count = "num_local_experts" if is_local else "num_experts"
    keys = (count, active, size)
    if settings.is_gguf:
        if not is_scaled:
            settings.reject("expert_weights_scale", 1.0)
        keys = ("expert_count", "expert_used_count", "expert_feed_forward_length")
        if settings.get(keys[2]) is None:
            keys = (*keys[:2], "feed_forward_length")
    settings.keys |= dict(zip(("num_experts", "num_active", "expert_size"), keys, strict=True))
    num_experts = settings.integer(keys[0], 0, low=0, high=1 << 16)
    if num_experts == 0:
        return None
    num_active = settings.integer(keys[1], high=1 << 16)
    if num_active > num_experts:
        raise LoadError(
            f"a row cannot choose {num_active} of {num_experts} experts "
            f"({settings.described('num_active')}, {settings.described('num_experts')})"
        )
    width = settings.width(keys[2], high=1 << 20)
    if num_experts * max(width, settings.size("hidden_size")) >= 1 << 31:
        raise LoadError(f"{num_experts} experts of {width} are too many ('{keys[0]}', '{keys[2]}')")
    return ExpertsConfig(num_experts, num_active, width, renormalized)


def read_layers(
    settings: Settings,
    *,
    period: int = 0,
    local_theta: float | None = None,
    is_local_plain: bool = False,
    **scaling: Any,
) -> list[LayerConfig]:
    """Return each layer's window and rope; the options are those of `Settings.windows` and `ropes`."""
    windows = settings.windows(period)
    head_dim = settings.sizes()["head_dim"]
    full, local = ropes(settings, head_dim, local_theta, is_local_plain, scaling)
    return [LayerConfig(full if window is None else local, window) for window in windows]


def turned_in_windows(layers: Sequence[LayerConfig]) -> list[LayerConfig]:
    """Return the layers, those that see everything without positions."""
    return [replace(layer, rope=layer.rope if layer.sliding_window else None) for layer in layers]


def by_layer(layers: Sequence[LayerConfig]) -> dict[str, Any]:
    """Return the fields of `ModelConfig` that say what is known of the layers."""
    first = layers[0]
    if all(layer == LayerConfig(first.rope, first.sliding_window) for layer in layers):
        return {"rope": first.rope, "sliding_window": first.sliding_window}
    return {"layers": tuple(layers)}


def llama_like(
    settings: Settings,
    family: str,
    *,
    layers: Sequence[LayerConfig] | None = None,
    activation: Activation | None = None,
    layer_norm_eps: str = "",
    **differences: Any,
) -> ModelConfig:
    """Return a config with RMS norm, rotary positions, a gated MLP, and the family's `differences`.

    `layer_norm_eps` is Hugging Face's key of a family that has layer norms instead.
    Raises LoadError for what is missing, wrong or not supported.
    """
    is_gguf = settings.is_gguf
    layers = read_layers(settings) if layers is None else layers
    if is_gguf and not any(layer.experts for layer in layers):
        settings.reject("expert_count", 0)
    sizes = settings.sizes()
    if is_gguf and "latent" not in differences:
        settings.reject(
            "attention.value_length", settings.get("attention.key_length", sizes["head_dim"])
        )
    if activation is None:
        activation = "silu" if is_gguf else settings.activation("hidden_act")
    if layer_norm_eps:
        norm_eps = "attention.layer_norm_epsilon" if is_gguf else layer_norm_eps
    else:
        norm_eps = "attention.layer_norm_rms_epsilon" if is_gguf else "rms_norm_eps"
    return ModelConfig(
        family=family,
        **sizes,
        norm="layer" if layer_norm_eps else "rms",
        norm_eps=settings.number(norm_eps, low=1e-15, high=1),
        activation=activation,
        tied_head=settings.is_tied(),
        **by_layer(layers),
        **differences,
    )
