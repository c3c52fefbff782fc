"""Tiny random models as stored tensors of any GGUF type, for the native decoder and for its torch reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import gguf
import numpy as np
import pytest

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.cache.base import KVCache
from forerun.model.config import (
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    RecurrentConfig,
    RopeConfig,
    StreamsConfig,
)
from forerun.model.model import Model
from forerun.model.shapes import weight_shapes
from forerun.weights.codes import E4M3, FLOAT8_GROUP, FORMATS, Codes
from forerun.weights.flat import FLAT_CODES, FlatRows
from forerun.weights.gguf_blocks import nvfp4
from forerun.weights.stored import StoredTensor

VOCAB = 77  # the last tile of the head is not whole

GATED = ModelConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=512,
    rope=RopeConfig(10000.0, 32),
)

ROPE, SLOW_ROPE = RopeConfig(10000.0, 32), RopeConfig(1e6, 32, (8.0,) * 16)
SANDWICH = replace(
    GATED,
    activation="gelu_tanh",
    norms="both",
    qk_norm="head",
    attention_cap=5.0,
    logits_cap=4.0,
    layers=(LayerConfig(ROPE, sliding_window=37), LayerConfig(SLOW_ROPE)),
)
"""As Gemma 2 and 3: four norms, caps, every other layer with a window and a rope of its own."""
AFTER = replace(
    GATED,
    norms="after",
    qk_norm="whole",
    query_growth=0.3,
    query_growth_every=40,
    layers=(LayerConfig(None), LayerConfig(ROPE)),
)
"""As OLMo 2 with SmolLM3's layers without rope and Ministral 3's growing queries."""
PARALLEL = replace(
    GATED,
    norm="layer",
    norms="parallel",
    qk_norm="each",
    residual_multiplier=0.7,
    layers=(LayerConfig(ROPE, sliding_window=37), LayerConfig(None)),
)
"""As Command R+ and R7B: attention and MLP read the same rows, heads have norms of their own."""
TURNED = replace(
    GATED, qk_norm="head", qk_norm_after_rope=True, gated_mlp=False, activation="relu2"
)
"""As Hunyuan, with Arcee's MLP."""
EXPERTS = replace(
    GATED,
    residual_multiplier=0.7,
    layers=(
        LayerConfig(ROPE, experts=ExpertsConfig(8, 3, 32), has_mlp=False),
        LayerConfig(ROPE, experts=ExpertsConfig(5, 2, 64, renormalized=False)),
    ),
)
"""As OLMoE and as Granite's experts beside an MLP that all rows share."""
PER_LAYER = replace(
    GATED,
    num_layers=3,
    activation="gelu_tanh",
    norms="both",
    qk_norm="head",
    value_norm=True,
    layer_scales=True,
    per_layer_width=32,
    layers=(
        LayerConfig(ROPE, sliding_window=37, intermediate_size=64),
        LayerConfig(RopeConfig(1e6, 64), head_dim=64, num_kv_heads=1, has_values=False),
        LayerConfig(ROPE, 37, ExpertsConfig(5, 2, 32, has_norms=True), shares_kv_of=0),
    ),
)
"""As Gemma 4: heads and MLPs by layer, keys that are values too, shared ones, per-layer embeddings, normed experts."""
STREAMS = replace(
    PER_LAYER,
    layer_scales=False,
    per_layer_vocab=VOCAB - 3,
    streams=StreamsConfig(4, 32),
    layers=(
        LayerConfig(ROPE, sliding_window=37, sparsity_cutoff=0.5),
        LayerConfig(RopeConfig(1e6, 32), intermediate_size=64, sparsity_cutoff=-0.3),
        LayerConfig(ROPE, 37, shares_kv_of=0),
    ),
)
"""As Gemma 3n: four streams, LAuReL, sparse MLPs."""
SINKS = replace(
    GATED,
    attention_sinks=True,
    activation="swiglu_oai",
    layers=tuple(
        LayerConfig(ROPE, window, ExpertsConfig(4, 2, 32), has_mlp=False) for window in (29, None)
    ),
)
"""As gpt-oss."""

DELTA = RecurrentConfig("delta", 4, num_heads=4, num_key_heads=2, key_dim=32, value_dim=32)
HYBRID = replace(
    GATED,
    num_layers=3,
    attention_gate=True,
    qk_norm="head",
    layers=(
        LayerConfig(None, recurrent=DELTA),
        LayerConfig(ROPE, experts=ExpertsConfig(5, 2, 32, gates_mlp=True)),
        LayerConfig(None, recurrent=replace(DELTA, num_key_heads=1, key_dim=16, value_dim=80)),
    ),
)
"""As Qwen3-Next: gated delta rule, gated attention, a gated MLP beside experts."""
TILED = replace(
    GATED,
    layers=(
        LayerConfig(None, recurrent=replace(DELTA, tiled=True, value_dim=16)),
        LayerConfig(ROPE),
    ),
)
"""As Qwen3.5 in GGUF."""
MAMBA = RecurrentConfig(
    "mamba2", 4, 6, 2, key_dim=32, value_dim=48, conv_bias=True, step_limits=(0.05, 0.7)
)
SHORT = replace(
    GATED,
    num_layers=4,
    residual_multiplier=0.7,
    layers=(
        LayerConfig(None, recurrent=MAMBA),
        LayerConfig(None, recurrent=RecurrentConfig("conv", 3, conv_bias=True)),
        LayerConfig(ROPE, sliding_window=37),
        LayerConfig(None, recurrent=replace(MAMBA, num_key_heads=1, conv_bias=False)),
    ),
)
"""As Granite 4's hybrids and LFM2 in one: Mamba-2 and short convolutions."""

ROUTED = ExpertsConfig(
    8,
    2,
    32,
    scoring="sigmoid",
    has_choice_bias=True,
    sum_offset=1e-20,
    scale=1.5,
    num_groups=4,
    num_active_groups=2,
    group_best=2,
)
"""As DeepSeek-V3's."""
BIASED_SOFTMAX = ExpertsConfig(5, 2, 64, has_choice_bias=True, sum_offset=1e-12)
"""As ERNIE 4.5's."""
ALONE = replace(
    GATED,
    num_layers=6,
    gated_mlp=False,
    activation="relu2",
    layers=(
        LayerConfig(None, recurrent=MAMBA, has_mlp=False),
        LayerConfig(None, experts=ROUTED, intermediate_size=64, has_mixer=False),
        LayerConfig(None, experts=BIASED_SOFTMAX, has_mixer=False, has_mlp=False),
        LayerConfig(None, has_mlp=False),
        LayerConfig(None, has_mixer=False),
        LayerConfig(None, recurrent=replace(MAMBA, num_key_heads=1), has_mlp=False),
    ),
)
"""As Nemotron-H: each layer is its mixer or its MLP alone."""
SMALL_ROPE = RopeConfig(10000.0, 32)
LATENT = replace(
    GATED,
    num_heads=6,
    num_kv_heads=1,
    head_dim=64,
    attention_scale=0.2,
    latent=LatentConfig(rank=32, rope_dim=32, query_dim=32, value_dim=48, query_rank=64),
    layers=(LayerConfig(SMALL_ROPE), LayerConfig(SMALL_ROPE, None, ROUTED, intermediate_size=64)),
)
"""As DeepSeek-V3 and GLM-4.7-Flash: attention to latents."""
LATENTS = replace(
    LATENT,
    num_heads=28,
    latent=LatentConfig(rank=32, rope_dim=32, query_dim=16, value_dim=16),
    layers=(
        LayerConfig(SMALL_ROPE, sliding_window=37),
        LayerConfig(SMALL_ROPE, None, replace(ROUTED, scoring="softmax", has_choice_bias=False)),
    ),
)
"""As DeepSeek-V2, and more heads than attend together."""

KINDS = {
    "q4": (GATED, "q4_1"),
    "mixed": (replace(GATED, num_kv_heads=1, head_dim=48, rope=None), "q8_0"),
    "window": (replace(GATED, sliding_window=29, qk_norm="head"), "q4_0"),
    "flat": (replace(GATED, num_kv_heads=1, head_dim=48, rope=None), "q4_c"),
    "own scales": (GATED, "q8_c row"),
    "sandwich": (SANDWICH, "q8_0"),
    "after": (AFTER, "q4_0"),
    "parallel": (PARALLEL, "q4_1"),
    "turned": (TURNED, "q8_0"),
    "experts": (EXPERTS, "q4_1"),
    "per layer": (PER_LAYER, "q4_0"),
    "streams": (STREAMS, "q4_0"),
    "float streams": (STREAMS, "bf16"),
    "sinks": (SINKS, "bf16"),
    "float8": (replace(GATED, num_kv_heads=1), "f8"),
    "table": (replace(GATED, num_kv_heads=1), "mxfp4"),
    "super": (replace(GATED, hidden_size=256, intermediate_size=256, head_dim=64), "q2_k"),
    "factor": (replace(GATED, num_kv_heads=1), "nvfp4"),
    "grid": (replace(GATED, hidden_size=256, intermediate_size=256, head_dim=64), "iq2_xs"),
    "hybrid": (HYBRID, "q4_0"),
    "tiled": (TILED, "bf16"),
    "short": (SHORT, "q8_0"),
    "alone": (ALONE, "q4_0"),
    "latent": (LATENT, "q4_0"),
    "latents": (LATENTS, "bf16"),
    "float": (replace(GATED, norm="layer", gated_mlp=False, activation="gelu"), "bf16"),
}
"""Configurations with a type of weights, which together take all ways through the kernels."""

BIASED = ("q", "k", "v", "o", "up", "down", "router", "expert_gate", "expert_up", "expert_down")
QUANTIZED = tuple(
    name
    for name, form in FORMATS.items()
    if form.group is not None and not form.is_flat and name != "f8"
)
"""Those whose rows are rounded to int8."""
TYPES = ("f32", "f16", "bf16", "f8", *QUANTIZED)

FACTORS = {
    "q4_z": (0, 2),
    "q8_m": (0, 4),
    "q8_z": (0, 2),
    "q2_k": (80, 84),
    "q3_k": (108, 110),
    "q4_k": (0, 4),
    "q5_k": (0, 4),
    "q6_k": (208, 210),
    "iq4_nl": (0, 2),
    "iq4_xs": (0, 2),
    "iq1_s": (0, 2),
    "iq1_m": (48, 56),
    "iq2_xxs": (0, 2),
    "iq2_xs": (0, 2),
    "iq2_s": (0, 2),
    "iq3_xxs": (0, 2),
    "iq3_s": (0, 2),
    "tq1_0": (52, 54),
    "tq2_0": (64, 66),
}
"""Where the fp16 factors of a block lie, of formats whose blocks are random; of IQ1_M in the top nibbles of words."""


def stored(name: str, values: np.ndarray, dtype: str) -> StoredTensor:
    """Values as a checkpoint would store them; the types that nothing here can write as random blocks."""
    if dtype == "f8":
        return float8(name, np.asarray(values, np.float32))
    if dtype == "nvfp4":
        data = _random_nvfp4(values.shape)
    elif dtype in FACTORS:
        data = _random_blocks(values.shape, dtype)
    else:
        kind = gguf.GGMLQuantizationType[dtype.upper()]
        data = gguf.quantize(np.ascontiguousarray(values, np.float32), kind)
        data = data.view(np.uint8).reshape(values.shape[0] if values.ndim > 1 else 1, -1)
    return StoredTensor(name, values.shape, FORMATS[dtype], data)


def float8(name: str, values: np.ndarray) -> StoredTensor:
    """Values as the e4m3 numbers of a folder, with a scale for every 128 columns of a row."""
    num_groups = -(-values.shape[1] // FLOAT8_GROUP)
    padded = np.pad(values, ((0, 0), (0, num_groups * FLOAT8_GROUP - values.shape[1])))
    scales = np.abs(padded.reshape(len(values), num_groups, -1)).max(-1) / np.float32(448)
    wide = np.repeat(scales, FLOAT8_GROUP, axis=1)[:, : values.shape[1]]
    codes = _nearest_e4m3(values / wide)
    coded = Codes(codes, scales, is_float8=True)
    return StoredTensor(name, values.shape, FORMATS["f8"], codes, lambda: coded)


def _nearest_e4m3(values: np.ndarray) -> np.ndarray:
    """The bytes of the numbers nearest to some within 448; of two as near, the even one."""
    known = E4M3[:127]  # not negative, ascending
    above = np.searchsorted(known, np.abs(values)).clip(1, 126)
    left, right = np.abs(values) - known[above - 1], known[above] - np.abs(values)
    takes_above = (right < left) | ((right == left) & (above % 2 == 0))
    codes = np.where(takes_above, above, above - 1)
    return (codes + 128 * np.signbit(values)).astype(np.uint8)


def _random_blocks(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.default_rng(shape[0] * 7 + shape[1])
    data = random.integers(
        0,
        256,
        (shape[0], shape[1] // FORMATS[dtype].block, FORMATS[dtype].block_nbytes),
        dtype=np.uint8,
    )
    first, stop = FACTORS[dtype]
    # Times scales up to 127 or values up to it.
    largest = 5e-4 if dtype in ("q6_k", "iq4_xs") or dtype.startswith("iq3") else 2e-3
    count = 1 if dtype == "iq1_m" else (stop - first) // 2
    factors = random.uniform(largest / 10, largest, (*data.shape[:2], count))
    put_factors(data, dtype, factors.astype(np.float16))
    if FORMATS[dtype].has_zero:
        zeros = -random.integers(0, 16, (*data.shape[:2], 1)).astype(np.float16)
        data[:, :, stop : stop + 2] = zeros.view(np.uint8)
    return data.reshape(shape[0], -1)


def put_factors(blocks: np.ndarray, dtype: str, factors: np.ndarray) -> None:
    """Write the fp16 factors of blocks (..., bytes)."""
    first, stop = FACTORS[dtype]
    if dtype != "iq1_m":
        blocks[..., first:stop] = factors.view(np.uint8)
        return
    words = np.ascontiguousarray(blocks[..., first:stop]).view(np.uint16) & 0xFFF
    nibbles = factors.view(np.uint16) >> np.arange(0, 16, 4, dtype=np.uint16) & 15
    blocks[..., first:stop] = (words | nibbles << 12).astype(np.uint16).view(np.uint8)


def _random_nvfp4(shape: tuple[int, ...]) -> np.ndarray:
    """Blocks with a factor for each row, as the experts of a matrix have them."""
    random = np.random.default_rng(shape[0] * 7 + shape[1])
    groups = (shape[0], shape[1] // 16)
    scales = random.integers(0x20, 0x48, groups, dtype=np.uint8)
    packed = random.integers(0, 256, (*groups, 8), dtype=np.uint8)
    return nvfp4(scales, packed, random.uniform(0.01, 0.1, shape[0]).astype(np.float32))


def flat(
    name: str,
    shape: tuple[int, int],
    form: str,
    limit: int = 127,
    *,
    uses_hadamard: bool = False,
) -> StoredTensor:
    """A random flattened matrix; those with as many inputs flatten them alike. Limit 0: rows have their own scales."""
    random = np.random.default_rng(shape[1])
    pieces = np.where(random.random(shape[1]) < 0.2, random.integers(2, 5, shape[1]), 1)
    by_row, limit = limit == 0, limit or 127
    steps = random.uniform(4, 6, shape[1]).astype(np.float32) / limit
    rows = FlatRows(steps, pieces.astype(np.int32), limit)
    rows = FlatRows.by_row(steps, uses_hadamard=uses_hadamard) if by_row else rows
    low, high = FLAT_CODES[FORMATS[form].bits]
    codes = random.integers(low, high + 1, shape).astype(np.int8)
    scales = random.uniform(0.5, 2, (shape[0], 1)).astype(np.float32) / (2 * limit * high)
    flattened = Codes(codes, scales, flat=rows)
    return StoredTensor(name, shape, FORMATS[form], np.zeros(shape, np.uint8), lambda: flattened)


def random_weights(
    config: ModelConfig, dtype: str = "f32", *, has_biases: bool = False, seed: int = 0
) -> dict[str, StoredTensor]:
    """Random weights of a model: matrices as `dtype`, vectors as fp32. In `q8_c row` rows have their own scales.

    Those of layers are transformed by Hadamard's matrix before they are rounded.
    """
    weights = {}
    dtype, _, scale = dtype.partition(" ")
    for name, shape in weight_shapes(config).items():
        random = np.random.default_rng((seed, zlib.crc32(name.encode())))
        values = random.standard_normal(shape) * (0.25 if len(shape) == 2 else 1)
        is_matrix = len(shape) == 2 and name != "positions"
        if name.endswith(".decay"):
            values = -0.1 * np.abs(values)
        if scale == "row" and is_matrix:
            weights[name] = flat(name, shape, dtype, 0, uses_hadamard=name.startswith("layers."))
        elif dtype.endswith("_c") and is_matrix and name.startswith("layers."):
            weights[name] = flat(name, shape, dtype)
        else:
            plain = "q8_0" if dtype.endswith("_c") else dtype
            weights[name] = stored(name, values, plain if is_matrix else "f32")
        is_norm = len(shape) == 1
        short = name.rpartition(".")[2]
        wants_bias = config.norm == "layer" if is_norm else has_biases and short in BIASED
        if wants_bias:
            bias = random.standard_normal(shape[0])
            weights[f"{name}.bias"] = stored(name, bias, "f32")
    return weights


def reference(config: ModelConfig, weights: Mapping[str, StoredTensor]) -> Model:
    """The torch decoder of the same weights; without torch the test is skipped."""
    pytest.importorskip("torch")
    from forerun.lab.torch import backend

    return backend.load(config, weights.items())


def native(
    config: ModelConfig, dtype: str = "f32", num_threads: int = 1, **options
) -> NativeDecoder:
    """A native decoder of random weights."""
    return load_native(config, random_weights(config, dtype), num_threads=num_threads, **options)


def logits_of(model: Model, cache: KVCache, *segments: Segment) -> Floats:
    """Logits (R, V) of one pass."""
    return model.head(model.forward(Batch(segments), cache).last)


def prefill(model: Model, tokens: tuple[int, ...], max_len: int = 512) -> Floats:
    """Logits (T, V) of a text in one pass over a fresh cache."""
    return logits_of(model, model.new_cache(1, max_len), Segment(0, 0, tokens))


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens."""
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())
