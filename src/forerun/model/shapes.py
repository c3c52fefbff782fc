"""The weights of a model by name, with their shapes, and what a row computes with them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forerun.model.config import (
    ExpertsConfig,
    LatentConfig,
    ModelConfig,
    RecurrentConfig,
    StreamsConfig,
)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical names and shapes of the weights; a bias is `<name>.bias`, (out,), if the checkpoint has it.

    Linear weights are (out, in), those of experts one below the other. `head` is absent when tied to `embed`. The
    kernels have them from here (csrc/model/model.cpp), and need every weight that is named.
    """
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, width), "norm": (width,)}
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, width)
    if config.learned_position_offset is not None:
        shapes["positions"] = (config.max_position + config.learned_position_offset, width)
    if config.per_layer_width is not None:
        total = config.num_layers * config.per_layer_width
        rows = config.per_layer_vocab or config.vocab_size
        shapes |= {"per_layer_embed": (rows, total), "per_layer_proj": (total, width)}
        shapes["per_layer_norm"] = (config.per_layer_width,)
    if config.streams is not None:
        others = (config.streams.num - 1) * width
        shapes |= {"altup_proj": (others, width), "altup_unembed": (others, width)}
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(config, i).items()}
    return shapes


def _layer_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    width, layer = config.hidden_size, config.layer(index)
    shapes = _mixer_shapes(config, index)
    if not layer.has_feed_forward:
        del shapes["mlp_norm"]
    if layer.has_mlp:
        inner = layer.intermediate_size or config.intermediate_size
        shapes |= {"up": (inner, width), "down": (width, inner)}
        if config.gated_mlp:
            shapes["gate"] = (inner, width)
    if layer.experts is not None:
        shapes |= _expert_shapes(width, layer.experts, config.gated_mlp)
    if config.per_layer_width is not None:
        size = config.per_layer_width
        shapes |= {"inp_gate": (size, width), "inp_proj": (width, size), "inp_norm": (width,)}
    if config.layer_scales:
        shapes["scale"] = (1,)
    if config.streams is not None:
        shapes |= _stream_shapes(width, config.streams)
    return shapes


def _stream_shapes(width: int, streams: StreamsConfig) -> dict[str, tuple[int, ...]]:
    """Return those of a layer's streams. The router is (streams, width), flat, as are the maps of its numbers."""
    num, rank = streams.num, streams.laurel_rank
    return {
        "altup_router": (num * width,),
        "altup_router_norm": (width,),
        "altup_predict": (num**3,),
        "altup_correct": (num**2,),
        "altup_scale": (width,),
        "laurel_left": (rank, width),
        "laurel_right": (width, rank),
        "laurel_norm": (width,),
    }


def _expert_shapes(
    width: int, experts: ExpertsConfig, is_gated: bool
) -> dict[str, tuple[int, ...]]:
    n, inner = experts.num_experts, experts.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"router": (n, width)}
    if is_gated:
        shapes["expert_gate"] = (n * inner, width)
    shapes |= {"expert_up": (n * inner, width), "expert_down": (n * width, inner)}
    if experts.has_choice_bias:
        shapes["choice_bias"] = (n,)
    if experts.gates_mlp:
        shapes["mlp_gate"] = (width,)
    if experts.has_norms:
        names = ("dense_out_norm", "experts_norm", "experts_out_norm", "router_norm")
        shapes |= dict.fromkeys(names, (width,)) | {"experts_scale": (n,)}
    return shapes


def _mixer_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return those of attention or of what stands in its place, with the norms of both sublayers."""
    width, layer = config.hidden_size, config.layer(index)
    if not layer.has_mixer:
        return {"mlp_norm": (width,)}
    if layer.recurrent is not None:
        return _recurrent_shapes(width, layer.recurrent)
    if config.latent is not None:
        return _latent_shapes(config, config.latent)
    return _attention_shapes(config, index)


def _attention_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return those of a layer's attention and of all norms beside sublayers. Random models depend on the order."""
    width, layer = config.hidden_size, config.layer(index)
    num_kv_heads, head_dim = config.heads(index)
    q_width, kv_width = config.num_heads * head_dim, num_kv_heads * head_dim
    has_keys = layer.shares_kv_of is None
    shapes: dict[str, tuple[int, ...]] = {} if config.norms == "after" else {"attn_norm": (width,)}
    shapes["q"] = (q_width, width)
    if has_keys:
        shapes["k"] = (kv_width, width)
    if has_keys and layer.has_values:
        shapes["v"] = (kv_width, width)
    shapes["o"] = (width, q_width)
    if config.norms in ("before", "both"):
        shapes["mlp_norm"] = (width,)
    if config.norms in ("after", "both"):
        shapes |= {"attn_out_norm": (width,), "mlp_out_norm": (width,)}
    if config.qk_norm is not None:
        widths = (head_dim, head_dim) if config.qk_norm == "head" else (q_width, kv_width)
        shapes["q_norm"] = widths[:1]
        if has_keys:
            shapes["k_norm"] = widths[1:]
    if config.attention_sinks:
        shapes["sinks"] = (config.num_heads,)
    if config.attention_gate:
        shapes["attn_gate"] = (q_width, width)
    return shapes


def _latent_shapes(config: ModelConfig, latent: LatentConfig) -> dict[str, tuple[int, ...]]:
    """Return those of attention to latents, norms included. `k_b` and `v_b` have a head's rows below another's."""
    width, heads = config.hidden_size, config.num_heads
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (width,)}
    made_of = width
    if latent.query_rank is not None:
        made_of = latent.query_rank
        shapes |= {"q_a": (made_of, width), "q_a_norm": (made_of,)}
    return shapes | {
        "q": (heads * latent.query_dim, made_of),
        "q_rope": (heads * latent.rope_dim, made_of),
        "kv_a": (latent.rank, width),
        "kv_a_norm": (latent.rank,),
        "k_rope": (latent.rope_dim, width),
        "k_b": (heads * latent.rank, latent.query_dim),
        "v_b": (heads * latent.value_dim, latent.rank),
        "o": (width, heads * latent.value_dim),
        "mlp_norm": (width,),
    }


def _recurrent_shapes(width: int, kind: RecurrentConfig) -> dict[str, tuple[int, ...]]:
    """Return those of a layer with a convolution and a state, norms included. `conv` is (channels, taps), flat."""
    channels = kind.num_channels(width)
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (width,), "mlp_norm": (width,)}
    shapes["in_proj"] = (3 * width if kind.kind == "conv" else channels, width)
    shapes["conv"] = (channels * kind.kernel,)
    if kind.conv_bias:
        shapes["conv_bias"] = (channels,)
    if kind.kind == "conv":
        return shapes | {"o": (width, width)}
    heads, values = kind.num_heads, kind.value_width
    shapes |= {"z": (values, width), "dt": (heads, width), "dt_bias": (heads,), "decay": (heads,)}
    if kind.kind == "delta":
        shapes |= {"beta": (heads, width), "state_norm": (kind.value_dim,)}
    else:
        shapes |= {"skip": (heads,), "state_norm": (values,)}
    return shapes | {"o": (width, values)}


def sizes_of(name: str) -> tuple[str, ...]:
    """Return the fields that decide on the shape of a weight of `weight_shapes`, for messages."""
    short = name.rpartition(".")[2]
    if short.startswith("expert_"):
        return "num_experts", "expert_size", "hidden_size"
    return _SIZES_OF.get(short, ("hidden_size",))


_SIZES_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("embed", "head"), ("vocab_size", "hidden_size")),
    "positions": ("max_position", "hidden_size"),
    **dict.fromkeys(("q", "o", "attn_gate"), ("num_heads", "head_dim", "hidden_size")),
    **dict.fromkeys(("k", "v"), ("num_kv_heads", "head_dim", "hidden_size")),
    "q_norm": ("num_heads", "head_dim"),
    "k_norm": ("num_kv_heads", "head_dim"),
    "sinks": ("num_heads",),
    **dict.fromkeys(("up", "gate", "down"), ("intermediate_size", "hidden_size")),
    "router": ("num_experts", "hidden_size"),
    **dict.fromkeys(("experts_scale", "choice_bias"), ("num_experts",)),
    **dict.fromkeys(("q_a", "q_a_norm", "q_rope"), ("query_rank", "num_heads", "hidden_size")),
    **dict.fromkeys(
        ("kv_a", "kv_a_norm", "k_rope", "k_b", "v_b"),
        ("latent_rank", "num_heads", "query_dim", "value_dim", "rope_dim"),
    ),
    **dict.fromkeys(
        ("per_layer_embed", "per_layer_proj", "per_layer_norm", "inp_gate", "inp_proj"),
        ("per_layer_width", "num_layers", "hidden_size"),
    ),
    **dict.fromkeys(
        ("in_proj", "z", "state_norm", "conv", "conv_bias"),
        ("state_heads", "state_key_heads", "value_dim", "key_dim", "kernel"),
    ),
    **dict.fromkeys(("dt", "dt_bias", "decay", "beta", "skip"), ("state_heads",)),
}


def flops_per_token(config: ModelConfig, context: int = 0) -> int:
    """Return floating-point operations of one row that sees `context` positions, head included: two a multiply-add.

    Of experts those that a row chooses are counted.
    """
    # A state is read twice by each row, and changed once.
    states = 3 * state_size(config)
    return 2 * (_num_weights(config)[1] + states) + attention_flops(config, context)


def row_share(config: ModelConfig) -> float:
    """Return the share of a model's matrices that a pass of one row reads: of experts those that it chooses."""
    held, read = _num_weights(config)
    return read / held


def _num_weights(config: ModelConfig) -> tuple[int, int]:
    """Return the numbers in all matrices and in those that one row is multiplied by, the head once in both."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    held = read = config.vocab_size * config.hidden_size if config.tied_head else 0
    for name, shape in weight_shapes(config).items():
        if len(shape) != 2 or name in ("embed", "positions", "per_layer_embed"):
            continue
        size, experts = math.prod(shape), None
        if ".expert_" in name:
            experts = layers[int(name.split(".")[1])].experts
        held += size
        read += size if experts is None else size // experts.num_experts * experts.num_active
    return held, read


def attention_flops(config: ModelConfig, context: int) -> int:
    """Return floating-point operations of one row's attention to `context` positions."""
    seen = sum(
        min(context, config.layer(i).sliding_window or context)
        * (config.heads(i)[1] + config.value_dim(i))
        for i in range(config.num_layers)
        if config.layer(i).has_mixer and config.layer(i).recurrent is None
    )
    return 2 * config.num_heads * seen


def state_size(config: ModelConfig) -> int:
    """Return the numbers of a sequence's recurrent states, of all layers."""
    kinds = (layer.recurrent for layer in config.layers)
    return sum(kind.num_heads * kind.key_dim * kind.value_dim for kind in kinds if kind is not None)
