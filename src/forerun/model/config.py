"""ModelConfig: everything in which the supported families differ, as plain numbers and choices.

`arch/<family>.py` fills it from a Hugging Face `config.json` or from GGUF metadata; the decoder and
the kernels read nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from forerun.core.arrays import Floats

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_oai"]
"""`relu2`: max(x, 0)^2. `swiglu_oai`: (min(u, 7) + 1) g sigmoid(1.702 g), gpt-oss's clamped gate."""
SWIGLU_LIMIT, SWIGLU_ALPHA = 7.0, 1.702
"""Of gpt-oss."""
WIDTH_UNIT = 4
"""Hidden sizes and head dims must be multiples of this for the row law to hold."""


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
    short_factors: tuple[float, ...] | None = None
    """Those of longrope where no text is longer than `short_length`."""
    short_length: int = 0

    def within(self, max_len: int) -> RopeConfig:
        """Return the embedding of texts of at most `max_len` tokens."""
        if self.short_factors is None or max_len > self.short_length:
            return self
        return RopeConfig(self.theta, self.rotary_dim, self.short_factors, self.attention_factor)

    def inverse_frequencies(self) -> Floats:
        """Return the radians that a position adds to the angle of each feature pair, (rotary_dim / 2,)."""
        exponents = np.arange(0, self.rotary_dim, 2, dtype=np.float32) / np.float32(self.rotary_dim)
        # The power in fp64, which rounds alike everywhere; the rest in fp32, as the models were trained.
        powers = np.power(self.theta, exponents, dtype=np.float64).astype(np.float32)
        frequencies: Floats = np.float32(1) / powers
        if self.factors is not None:
            frequencies /= np.array(self.factors, np.float32)
        return frequencies


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: `num_active` of `num_experts` MLPs for each row (Shazeer et al., arXiv 1701.06538).

    The router's logits z (num_experts,) become scores: softmax(z) over all experts, or sigmoid(z). The largest are
    chosen, and are their experts' weights; where they are `renormalized`, divided by their sum.
    """

    num_experts: int
    num_active: int
    intermediate_size: int
    renormalized: bool = True
    gates_mlp: bool = False
    """Whether what the MLP beside the experts gives is multiplied by sigmoid of a product of the row (Qwen3-Next)."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    has_choice_bias: bool = False
    """Whether a bias of the checkpoint is added to the scores that choose, and not to weights (arXiv 2408.15664)."""
    sum_offset: float = 0.0
    """What is added to the sum that renormalized weights are divided by."""
    scale: float = 1.0
    """What weights are multiplied by at the end."""
    num_groups: int = 1
    """Groups of as many neighbours each, of which the best `num_active_groups` alone have experts to be chosen."""
    num_active_groups: int = 1
    group_best: int = 1
    """A group is as good as the sum of its so many best scores (DeepSeek-V2: 1, V3: 2)."""
    has_norms: bool = False
    """Experts, their router and the MLP beside them read the same rows through norms of their own; what experts and
    MLP give is normed before it is added, and an expert's weight is multiplied by one of the checkpoint (Gemma 4)."""


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """What stands in the place of attention in a layer: a short causal convolution and, mostly, a state of each head.

    delta: the gated delta rule of arXiv 2412.06464 (Qwen3-Next, Qwen3.5). mamba2: arXiv 2405.21060 (Granite 4).
    conv: a convolution between two gates, and no state (LFM2). Rows are projected to `num_channels` numbers by
    `in_proj`: [q | k | v] of the delta rule, [v | k | q] of Mamba-2 (its x, B and C), [gate in | gate out | x] of a
    convolution alone. A head of values h reads the keys and queries of head h // (num_heads / num_key_heads), or
    h % num_key_heads if they are `tiled`.
    """

    kind: Literal["delta", "mamba2", "conv"]
    kernel: int
    """Taps of the convolution: it sees so many rows, the row itself included."""
    num_heads: int = 0
    """Of values."""
    num_key_heads: int = 0
    """Of keys and queries."""
    key_dim: int = 0
    value_dim: int = 0
    tiled: bool = False
    conv_bias: bool = False
    step_limits: tuple[float, float] = (0.0, math.inf)
    """Between which Mamba-2's steps are kept."""

    @property
    def key_width(self) -> int:
        """Numbers of all heads' keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers of all heads' values."""
        return self.num_heads * self.value_dim

    def num_channels(self, hidden_size: int) -> int:
        """Return the numbers of a row that are convolved."""
        return hidden_size if self.kind == "conv" else 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Attention whose keys and values are one vector for all heads (DeepSeek-V2, arXiv 2405.04434), MLA.

    A row leaves [latent | rotated part], which is its key; its value is the latent. A head's query is turned by `k_b`
    into one of latents, and what it has read of them by `v_b` into its output: so the one key has `rope_dim` + `rank`
    dimensions, `ModelConfig.head_dim`, and the one kv head serves all.
    """

    rank: int
    rope_dim: int
    """Of a query and of the key, which are rotated."""
    query_dim: int
    """The part of a head's query that is not."""
    value_dim: int
    """Of a head's output."""
    query_rank: int | None = None
    """Width of the projection that queries are made of; None: they are made of the row."""
    norm_eps: float = 1e-6
    """Of the norms of latents, whatever the others have."""


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Several states of a row, of which layers compute the first (AltUp, arXiv 2301.13310; Gemma 3n).

    Before a layer a linear map predicts all of them; behind it, what the layer changed in the first corrects them.
    """

    num: int
    laurel_rank: int
    """Of the two matrices whose product is added beside attention (LAuReL, arXiv 2411.07501)."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """In what the layers of one model differ."""

    rope: RopeConfig | None
    sliding_window: int | None = None
    """A query sees at most this many positions, itself included."""
    experts: ExpertsConfig | None = None
    has_mlp: bool = True
    """Whether there is a dense MLP; beside experts it is the one that they share, and both are added."""
    head_dim: int | None = None
    num_kv_heads: int | None = None
    intermediate_size: int | None = None
    """Of this layer, if they are not the model's (Gemma 4)."""
    shares_kv_of: int | None = None
    """The layer before whose keys and values this one reads; it has none of its own."""
    has_values: bool = True
    """Whether values have a projection; else they are the keys before norm and rope."""
    recurrent: RecurrentConfig | None = None
    """What there is instead of attention."""
    has_mixer: bool = True
    """Whether there is attention or what stands in its place; else the layer is its MLP or its experts alone, as
    others have neither (Nemotron-H)."""
    cutoff: float | None = None
    """What an MLP's gates must exceed, in standard deviations of a row's gates above their mean: what they have beyond
    is activated, and 0 of the others. None: all are activated as they are."""

    @property
    def has_feed(self) -> bool:
        """Whether there is an MLP, experts, or both."""
        return self.has_mlp or self.experts is not None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer: blocks of one attention and one MLP each.

    Layers that are not listed by `layers` are alike: `rope`, `sliding_window` and a dense MLP.
    """

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
    norms: Literal["before", "after", "both", "parallel"] = "before"
    """Where a sublayer's norms are: of what it reads, of what it adds to the residual stream, or of both.

    parallel: one of what attention reads, which the MLP reads too; both are added to what came in."""
    qk_norm: Literal["head", "each", "whole"] | None = None
    """Norms of q and k: of each head, with the same weights or with its own, or over the whole projected width."""
    qk_norm_after_rope: bool = False
    """Whether those of heads come after rope, not before."""
    tied_head: bool = False
    sliding_window: int | None = None
    layers: tuple[LayerConfig, ...] = ()
    latent: LatentConfig | None = None
    """How attention compresses keys and values, if it does."""
    attention_gate: bool = False
    """Whether each head's output is multiplied by sigmoid of a projection of the row (Qwen3-Next)."""
    attention_sinks: bool = False
    """Whether each head has a logit without a value in its softmax (Xiao et al., arXiv 2309.17453; gpt-oss)."""
    attention_cap: float | None = None
    """Scores s become cap tanh(s / cap), before the mask."""
    logits_cap: float | None = None
    """Logits z become cap tanh(z / cap)."""
    query_growth: float = 0.0
    """Queries grow by 1 + query_growth ln(1 + floor(position / query_growth_every)) (Ministral 3)."""
    query_growth_every: int = 8192
    value_norm: bool = False
    """Whether each head of v is divided by its root mean square."""
    layer_scales: bool = False
    """Whether each layer's output is multiplied by a number of the checkpoint."""
    per_layer_width: int | None = None
    """Width of per-layer embeddings: each layer ends with a gated addition of a vector of its own for the token."""
    per_layer_vocab: int | None = None
    """Tokens that have such embeddings, the others those of token 0; None: all have."""
    streams: StreamsConfig | None = None
    """States of a row beside that which layers compute, if there are any."""
    borrows_kv: bool = False
    """Whether all layers read another model's cache, whose layers `shares_kv_of` names: a row sees what is committed
    there and not itself, and leaves nothing (Gemma 4's assistants)."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_scale: float | None = None
    """Scale of the attention scores; None is head_dim ** -0.5."""
    logits_divisor: float = 1.0

    def within(self, max_len: int | None) -> ModelConfig:
        """Return the model for texts of at most `max_len` tokens, None: of any length. Only longrope differs."""
        rope = self.rope
        if max_len is None or rope is None or rope.within(max_len) == rope:
            return self
        return replace(self, rope=rope.within(max_len), max_position=rope.short_length)

    @property
    def scale(self) -> float:
        """The scale of attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def layer(self, index: int) -> LayerConfig:
        """Return the configuration of a layer."""
        return self.layers[index] if self.layers else LayerConfig(self.rope, self.sliding_window)

    def heads(self, index: int) -> tuple[int, int]:
        """Return the kv heads and the head dimension of a layer."""
        layer = self.layer(index)
        return layer.num_kv_heads or self.num_kv_heads, layer.head_dim or self.head_dim

    def value_dim(self, index: int) -> int:
        """Return the dimension of a layer's values in the cache."""
        return self.heads(index)[1] if self.latent is None else self.latent.rank

    def stored_heads(self) -> list[tuple[int, int]]:
        """Return the kv heads that each layer leaves in the cache, none if it shares another's, and their dimension."""
        kinds = [self.layer(i) for i in range(self.num_layers)]
        has_none = [
            k.shares_kv_of is not None or k.recurrent is not None or not k.has_mixer for k in kinds
        ]
        heads = [self.heads(i) for i in range(self.num_layers)]
        return [(0 if none else n, dim) for (n, dim), none in zip(heads, has_none, strict=True)]

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer has a state besides keys and values."""
        return any(layer.recurrent is not None for layer in self.layers)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical names and shapes of the weights; a bias is `<name>.bias`, (out,), if the checkpoint has it.

    Linear weights are (out, in), those of experts one below the other. `head` is absent when tied to `embed`.
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
    if not layer.has_feed:
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
