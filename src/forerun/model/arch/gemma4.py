"""Gemma 4's text half: Gemma 3 with other heads in layers that see everything, and keys and values that layers share.

E2B and E4B have per-layer embeddings, the 26B experts beside each MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.gemma import (
    ASSUMED,
    PER_LAYER_NAMES,
    gemma_like,
    per_layer_width,
    sharing_kv,
)
from forerun.model.arch.base.mapping import expert_source, experts_of, plain_source, read_experts
from forerun.model.arch.base.rope import ropes
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import WIDTH_UNIT, ExpertsConfig, LayerConfig, ModelConfig

HF_ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
GGUF_ARCHITECTURES = ("gemma4",)

_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
_NAMES = PER_LAYER_NAMES | {
    "router": ("router.proj", "ffn_gate_inp"),
    "dense_out_norm": ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    "experts_norm": ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    "experts_out_norm": ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
}
_BARE = {
    "scale": ("layer_scalar", "layer_output_scale.weight"),
    "router_norm": ("router.scale", "ffn_gate_inp.scale"),
    "experts_scale": ("router.per_expert_scale", "ffn_down_exps.scale"),
}
"""Tensors without `.weight` behind their names."""


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint. Raises LoadError."""
    if settings.get("use_bidirectional_attention") == "all":
        settings.reject("use_bidirectional_attention", None)
    settings.assumed = {
        **ASSUMED,
        "vocab_size": 262_144,
        "num_hidden_layers": 30,
        "rope_parameters": _ROPES,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
    }
    layers = sharing_kv(settings, (_gguf_layers if settings.is_gguf else _hf_layers)(settings))
    return gemma_like(
        settings,
        "gemma4",
        layers,
        None,
        qk_norm="head",
        value_norm=True,
        layer_scales=True,
        per_layer_width=per_layer_width(settings),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    is_gguf, layer = kind == "gguf", "blk.{i}." if kind == "gguf" else "model.layers.{i}."
    if name in _BARE:
        factor = config.hidden_size**-0.5 if name == "router_norm" else 1.0
        return TensorSource(layer + _BARE[name][is_gguf], factor=factor, suffixes=("", ".bias"))
    if name in _NAMES:
        start = "" if name.startswith("per_layer_") else layer
        return TensorSource(start + _NAMES[name][is_gguf])
    if not name.startswith("expert_"):
        return plain_source(name, config, kind)
    if not is_gguf:
        experts = "model.layers.{i}.experts."
        return expert_source(name, config, kind, each=f"{experts}{{e}}.", fused=experts)
    usual = plain_source(name, config, kind)
    if name == "expert_down":
        return usual
    inner = experts_of(config).intermediate_size
    rows = slice(0, inner) if name == "expert_gate" else slice(inner, 2 * inner)
    fused = replace(usual, name="blk.{i}.ffn_gate_up_exps", part=rows, num_rows=2 * inner)
    return replace(fused, otherwise=usual)


def _hf_layers(settings: Settings) -> list[LayerConfig]:
    """Read what layers that see everything have for themselves, by two keys or layer by layer."""
    windows = settings.windows(6)
    is_same = settings.flag("attention_k_eq_v", False)
    usual = {"head_dim": settings.get("global_head_dim", 512)}
    if is_same:
        usual["num_key_value_heads"] = settings.get("num_global_key_value_heads")
    given = settings.get("per_layer_config")
    layers = []
    for i, window in enumerate(windows):
        sizes: object = usual if window is None else {}
        if isinstance(given, Mapping):
            sizes = given.get(str(i), given.get(i, {}))
        if not isinstance(sizes, Mapping):
            raise LoadError(f"'per_layer_config' has {short_repr(sizes)}, but must have objects")
        layers.append(
            LayerConfig(
                None,
                window,
                head_dim=_size_of(sizes, "head_dim", settings.size("head_dim"), WIDTH_UNIT),
                num_kv_heads=_size_of(sizes, "num_key_value_heads", settings.size("num_kv_heads")),
                intermediate_size=settings.size("intermediate_size"),
                has_values=window is not None or not is_same,
            )
        )
    if settings.flag("use_double_wide_mlp", False):
        width = 2 * settings.size("intermediate_size")
        first = len(layers) - settings.integer("num_kv_shared_layers", 0, low=0, high=len(layers))
        layers[first:] = [replace(layer, intermediate_size=width) for layer in layers[first:]]
    has_experts = settings.flag("enable_moe_block", False)
    experts = read_experts(settings, active="top_k_experts") if has_experts else None
    return _finished(settings, layers, experts)


def _size_of(sizes: Mapping[str, object], key: str, usual: int, unit: int = 1) -> int:
    """Return a size of a layer, or the usual one. Raises LoadError."""
    value = sizes.get(key)
    if value is None:
        return usual
    if not isinstance(value, int) or not 0 < value <= 1 << 12 or value % unit:
        raise LoadError(
            f"'{key}' of a layer is {short_repr(value)}, but must be a multiple of {unit} up to {1 << 12}"
        )
    return value


def _gguf_layers(settings: Settings) -> list[LayerConfig]:
    windows = settings.windows(6)
    full = settings.size("head_dim")
    local = settings.integer("attention.key_length_swa", full, high=1 << 12)
    kv_heads, widths = settings.by_layer("num_kv_heads"), settings.by_layer("intermediate_size")
    settings.fixed |= {
        "num_kv_heads": kv_heads[0],
        "intermediate_size": widths[0],
        "head_dim": local,
    }
    names = settings.checkpoint.names()
    layers = [
        LayerConfig(
            None,
            window,
            head_dim=full if window is None else local,
            num_kv_heads=kv_heads[i],
            intermediate_size=widths[i],
            has_values=f"blk.{i}.attn_v.weight" in names,
        )
        for i, window in enumerate(windows)
    ]
    return _finished(settings, layers, read_experts(settings))


def _finished(
    settings: Settings, layers: list[LayerConfig], experts: ExpertsConfig | None
) -> list[LayerConfig]:
    """Add ropes and experts, and leave out sizes that are the model's."""
    sizes = settings.sizes()
    head_dims = {layer.head_dim for layer in layers if layer.sliding_window is None}
    if len(head_dims) > 1 or any(
        layer.head_dim != sizes["head_dim"] for layer in layers if layer.sliding_window
    ):
        raise LoadError("heads that differ between layers of one kind are not supported")
    dim = next(iter(head_dims), None) or sizes["head_dim"]
    full, local = ropes(settings, dim, 10_000.0, is_local_plain=True, local_dim=sizes["head_dim"])
    if experts is not None:
        experts = replace(experts, has_norms=True)
    finished = []
    for layer in layers:
        kv_heads = layer.num_kv_heads
        if sizes["num_heads"] % (kv_heads or 1):
            raise LoadError(
                f"{sizes['num_heads']} query heads cannot share {kv_heads} kv heads evenly"
            )
        layer = replace(
            layer,
            rope=full if layer.sliding_window is None else local,
            experts=experts,
            head_dim=_unless(layer.head_dim, sizes["head_dim"]),
            num_kv_heads=_unless(kv_heads, sizes["num_kv_heads"]),
            intermediate_size=_unless(layer.intermediate_size, sizes["intermediate_size"]),
        )
        finished.append(layer)
    return finished


def _unless(value: int | None, usual: int) -> int | None:
    """Return the value, None if it is the usual one."""
    return None if value == usual else value
