"""ModelConfig: everything in which the supported families differ, as plain numbers and choices.

`arch/<family>.py` fills it from a Hugging Face `config.json` or from GGUF metadata; the decoder and
the kernels read nothing else.
"""

from __future__ import annotations

import math
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
    sparsity_cutoff: float | None = None
    """What an MLP's gates must exceed, in standard deviations of a row's gates above their mean: what they have beyond
    is activated, and 0 of the others. None: all are activated as they are."""

    @property
    def has_feed_forward(self) -> bool:
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

    def without_layers(self, *, tied_head: bool) -> ModelConfig:
        """Return the shape of the embedding and the head alone."""
        return replace(
            self, num_layers=0, layers=(), tied_head=tied_head, learned_position_offset=None
        )

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
