"""Recurrent layers: what they compute, row by row as in the papers, and states that no draft ever changes."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError
from forerun.model.backends.native import NativeDecoder, unsupported
from forerun.model.backends.native import load as load_native
from forerun.model.cache.native import NativeCache
from forerun.model.config import LayerConfig, ModelConfig, RecurrentConfig
from tests.arrays import assert_close, same_bits
from tests.native.models import (
    DELTA,
    GATED,
    KINDS,
    MAMBA,
    logits_of,
    native,
    random_weights,
    stored,
    text,
)

CHUNK = 64
MAX_LEN = 4 * CHUNK
RECURRENT = [kind for kind, (config, _) in KINDS.items() if config.is_recurrent]

law = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
lengths = st.one_of(st.integers(1, 20), st.integers(CHUNK - 9, CHUNK + 2), st.integers(120, 130))

MIXERS: Mapping[str, RecurrentConfig] = {
    "delta": DELTA,
    "tiled": replace(DELTA, tiled=True),
    "wide": replace(DELTA, num_key_heads=1, key_dim=16, value_dim=80),
    "mamba2": MAMBA,
    "mamba2 of one group": replace(MAMBA, num_key_heads=1, conv_bias=False),
    "conv": RecurrentConfig("conv", 3, conv_bias=True),
}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def convolved(
    raw: np.ndarray, kind: RecurrentConfig, weights: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Sums (T, C) over the taps, the last one the row itself; zeros stand before the text."""
    taps = weights["conv"].reshape(-1, kind.kernel)
    padded = np.concatenate((np.zeros((kind.kernel - 1, raw.shape[1])), raw))
    mixed = sum(padded[j : j + len(raw)] * taps[:, j] for j in range(kind.kernel))
    return np.asarray(mixed + weights.get("conv_bias", 0.0))


def mixer(x: np.ndarray, kind: RecurrentConfig, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """What a layer adds to rows (T, D), one after the other in float64: the recurrence as its papers write it."""
    x = normed(x, weights["attn_norm"], GATED.norm_eps)
    raw = x @ weights["in_proj"].T
    if kind.kind == "conv":
        before, behind, own = np.split(raw, 3, axis=1)
        return (behind * convolved(before * own, kind, weights)) @ weights["o"].T
    channels = silu(convolved(raw, kind, weights))
    parts = (kind.key_width, kind.key_width, kind.value_width)
    if kind.kind == "delta":
        q, k, v = np.split(channels, np.cumsum(parts)[:-1], axis=1)
    else:
        v, k, q = np.split(channels, np.cumsum(parts[::-1])[:-1], axis=1)
    q, k = (part.reshape(len(x), kind.num_key_heads, -1) for part in (q, k))
    v = v.reshape(len(x), kind.num_heads, -1)
    step = np.log1p(np.exp(x @ weights["dt"].T + weights["dt_bias"]))
    if kind.kind == "delta":
        q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        q = q / np.sqrt(kind.key_dim)
        rate = 1 / (1 + np.exp(-x @ weights["beta"].T))
    else:
        step = np.clip(step, *kind.step_limits)
    out = np.zeros_like(v)
    for head in range(kind.num_heads):
        shared = kind.num_heads // kind.num_key_heads
        of = head % kind.num_key_heads if kind.tiled else head // shared
        state = np.zeros((kind.key_dim, kind.value_dim))
        for t in range(len(x)):
            state *= np.exp(weights["decay"][head] * step[t, head])
            value = v[t, head]
            if kind.kind == "delta":
                state += np.outer(k[t, of], rate[t, head] * (value - state.T @ k[t, of]))
            else:
                state += np.outer(k[t, of], step[t, head] * value)
            out[t, head] = state.T @ q[t, of]
            if kind.kind == "mamba2":
                out[t, head] += weights["skip"][head] * value
    gate = silu(x @ weights["z"].T)
    if kind.kind == "delta":
        mixed = normed(out, weights["state_norm"], GATED.norm_eps).reshape(len(x), -1) * gate
    else:
        groups = (out.reshape(len(x), -1) * gate).reshape(len(x), kind.num_key_heads, -1)
        own = weights["state_norm"].reshape(kind.num_key_heads, -1)
        mixed = normed(groups, own, GATED.norm_eps).reshape(len(x), -1)
    return np.asarray(mixed @ weights["o"].T)


def of_mixer(kind: RecurrentConfig) -> ModelConfig:
    """A model whose first layer has it; the second one attends."""
    return replace(GATED, layers=(LayerConfig(None, recurrent=kind), LayerConfig(GATED.rope)))


@pytest.mark.parametrize("name", MIXERS)
def test_a_layer_computes_the_recurrence_of_its_paper(name: str) -> None:
    config = of_mixer(MIXERS[name])
    weights = random_weights(config)
    for key in ("layers.0.down", "layers.1.o", "layers.1.down"):  # the mixer alone adds something
        weights[key] = stored(key, np.zeros(weights[key].shape, np.float32), "f32")
    model = load_native(config, weights, num_threads=2)
    tokens = text(150)
    arrays = {key: tensor.dequantize().astype(np.float64) for key, tensor in weights.items()}
    own = {key[len("layers.0.") :]: w for key, w in arrays.items() if key.startswith("layers.0.")}
    x = arrays["embed"][list(tokens)]
    expected = normed(x + mixer(x, MIXERS[name], own), arrays["norm"], GATED.norm_eps)
    batch = Batch((Segment(0, 0, tokens, certain=len(tokens)),))
    cache = model.new_cache(1, MAX_LEN)
    found = model.forward(batch, cache)
    assert_close(found.last, expected, rtol=1e-3, atol=1e-4)


def read(model: NativeDecoder, cache: NativeCache, tokens: tuple[int, ...]) -> Floats:
    """Logits of tokens that follow those of the first slot, all of which are kept."""
    segment = Segment(0, cache.length(0), tokens, certain=len(tokens))
    logits = logits_of(model, cache, segment)
    cache.keep(0, range(len(tokens)))
    return logits


def one_by_one(model: NativeDecoder, tokens: tuple[int, ...]) -> tuple[NativeCache, Floats]:
    cache = model.new_cache(1, MAX_LEN)
    rows = [read(model, cache, (token,)) for token in tokens]
    return cache, np.concatenate(rows)


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, ...]:
    """Parents of a draft's nodes, which are often below the one before."""
    size = draw(st.integers(1, 24))
    return tuple(
        i - 1 if draw(st.integers(0, 2)) else draw(st.integers(-1, i - 1)) for i in range(size)
    )


@law
@given(
    kind=st.sampled_from(RECURRENT),
    length=lengths,
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_after_any_drafts_states_are_those_of_one_by_one_decoding(
    kind: str, length: int, threads: int, data: st.DataObject
) -> None:
    """And so is every row of every tree, also across a multiple of 64 positions."""
    config, dtype = KINDS[kind]
    model = native(config, dtype, threads)
    cache, tokens = model.new_cache(1, MAX_LEN), text(length)
    read(model, cache, tokens)
    for step in range(data.draw(st.integers(1, 3))):
        parents = data.draw(trees())
        nodes = text(len(parents), seed=step + 1)
        logits_of(model, cache, Segment(0, len(tokens), (1,)))  # what was kept may complete a chunk
        before = cache.native.state(0).copy()
        logits = logits_of(model, cache, Segment(0, len(tokens), nodes, parents))
        assert same_bits(before, cache.native.state(0))
        path = tree.path_to(data.draw(st.integers(0, len(nodes) - 1)), parents)
        plain, expected = one_by_one(model, (*tokens, *(nodes[i] for i in path)))
        assert same_bits(logits[list(path)], expected[len(tokens) :])
        if data.draw(st.booleans()):
            cache.keep(0, path)
            tokens = (*tokens, *(nodes[i] for i in path))
    plain, _ = one_by_one(model, (*tokens, 5))
    read(model, cache, (5,))
    assert cache.states is not None
    assert plain.states is not None
    assert cache.states.rows == plain.states.rows
    assert same_bits(cache.native.state(0), plain.native.state(0))


@law
@given(
    kind=st.sampled_from(RECURRENT),
    length=lengths,
    certain=st.integers(1, 12),
    parents=trees(),
    data=st.data(),
)
def test_a_tree_grown_level_by_level_has_the_bits_of_one_pass(
    kind: str, length: int, certain: int, parents: tuple[int, ...], data: st.DataObject
) -> None:
    """Its rows stay beside the state, also when that goes on between two levels."""
    config, dtype = KINDS[kind]
    model = native(config, dtype, 2)
    tokens = text(length)
    nodes = text(certain + len(parents), seed=3)
    both = tree.chain(certain) + tuple(certain + parent for parent in parents)
    caches = [model.new_cache(1, MAX_LEN) for _ in range(2)]
    for cache in caches:
        read(model, cache, tokens)
    whole = Segment(0, length, nodes, both, certain=certain)
    expected = logits_of(model, caches[0], whole)
    stops = data.draw(st.sets(st.integers(certain, len(nodes) - 1), max_size=4))
    first, found = 0, []
    for stop in (*sorted(stops), len(nodes)):
        part = replace(whole, first=first, stop=stop)
        found.append(logits_of(model, caches[1], part))
        first = stop
    assert same_bits(np.concatenate(found), expected)


@pytest.mark.parametrize("kind", RECURRENT)
def test_drafts_across_a_chunk_have_the_same_bits_everywhere(kind: str) -> None:
    """On every instruction set, with any number of threads, beside other sequences."""
    config, dtype = KINDS[kind]
    weights = random_weights(config, dtype)
    parents = (-1, 0, 1, 2, 1, 4, 5, 3, 7, 6, 0, 10)
    nodes = text(len(parents), seed=4)
    results = []
    for isa in _native.runnable_isas():
        for threads in (1, 2, 3):
            model = load_native(config, weights, num_threads=threads, isa=isa)
            cache = model.new_cache(2, MAX_LEN)
            others = Segment(1, 0, text(90, seed=6), certain=90)
            logits_of(model, cache, Segment(0, 0, text(125), certain=125), others)
            cache.keep(0, range(125))
            cache.keep(1, range(90))
            segments = Segment(0, 125, nodes, parents), Segment(1, 90, (1, 2, 3), certain=3)
            results.append(logits_of(model, cache, *segments))
    assert all(same_bits(results[0], other) for other in results[1:])


def test_a_rejected_nan_is_forgotten() -> None:
    config, _ = KINDS["hybrid"]
    weights = random_weights(config, "f32")
    embed = weights["embed"].dequantize()
    embed[5] = np.nan
    weights["embed"] = replace(weights["embed"], data=embed.view(np.uint8).reshape(77, -1))
    model = load_native(config, weights, num_threads=2)
    tokens = tuple(7 if token == 5 else token for token in text(60))
    cache = model.new_cache(1, MAX_LEN)
    read(model, cache, tokens)
    parents = (-1, 0, -1, *range(2, 11))
    logits = logits_of(model, cache, Segment(0, 60, (5, 1, *range(10, 20)), parents))
    assert np.isnan(logits[:2]).all()
    assert np.isfinite(logits[2:]).all()
    cache.keep(0, tuple(range(2, 12)))
    assert np.isfinite(read(model, cache, (1,))).all()
    states = cache.native.state(0).view(np.float32)
    assert states.any()
    assert np.isfinite(states).all()


def test_states_are_copied_cleared_and_given_back() -> None:
    model = native(of_mixer(DELTA))
    cache = model.new_cache(1, MAX_LEN, num_checkpoints=1)
    logits = read(model, cache, text(80))
    memory = cache.native
    kept = memory.state(0).copy()
    assert kept.any()
    assert not memory.state(1).any()
    memory.copy_state(0, 1)
    for empty in (memory.clear_state, memory.drop_state):
        empty(0)
        assert not memory.state(0).any()
        assert same_bits(memory.state(1), kept)
        memory.copy_state(1, 0)
        assert same_bits(memory.state(0), kept)
    memory.place_state(0, 1, CHUNK)
    cache.truncate(0, CHUNK)
    assert same_bits(read(model, cache, text(80)[CHUNK:]), logits[CHUNK:])


def test_memory_is_what_states_and_rows_take() -> None:
    memory = native(of_mixer(DELTA)).new_cache(1, MAX_LEN, draft_rows=16).native
    channels, heads, keys = DELTA.num_channels(64), DELTA.num_heads, DELTA.key_width
    state = 4 * (heads * 32 * 32 + 3 * channels)
    assert state <= memory.state_nbytes < state + mmap.PAGESIZE
    assert memory.state_nbytes % mmap.PAGESIZE == 0
    assert memory.rows_nbytes == 4 * 80 * (channels + keys + DELTA.value_width + heads)


def test_what_cannot_be_is_refused() -> None:
    config, dtype = KINDS["hybrid"]
    model = native(config, dtype)
    turned = native(replace(config, layers=config.layers[::-1]))
    with pytest.raises(ValueError, match="states were made for another model"):
        logits_of(turned, model.new_cache(1, 64), Segment(0, 0, (1,)))
    cache = model.new_cache(1, MAX_LEN, draft_rows=7)
    read(model, cache, text(63))
    assert np.isfinite(logits_of(model, cache, Segment(0, 63, (1,) * 8))).all()
    with pytest.raises(CapacityError, match="more than 7 rows"):
        logits_of(model, cache, Segment(0, 63, (1,) * 9))
    kinds = [config.layer(i).recurrent for i in range(3)]
    memory = _native.Cache(config.stored_heads(), 1, 256, "fp16", 4, kinds, 64, 2)
    runtime = _native.Runtime("auto", 1)
    for refused in (
        lambda: memory.place_state(0, 2, 0),
        lambda: memory.place_state(0, -1, 0),
        lambda: memory.place_state(0, 0, 63),
        lambda: memory.place_state(1, 0, 0),
        lambda: memory.copy_state(0, 2),
        lambda: memory.clear_state(2),
        lambda: memory.drop_state(2),
        lambda: memory.advance(runtime, 0, 64),
    ):
        with pytest.raises(ValueError, match=r"state|slot"):
            refused()
    memory.place_state(0, 0, 64)
    for rows in (63, 64 + 2 * CHUNK):
        with pytest.raises(ValueError, match="one chunk on"):
            memory.advance(runtime, 0, rows)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (replace(DELTA, key_dim=24), "multiples of 16, but are"),
        (replace(MAMBA, value_dim=8), "multiples of 16, but are"),
        (RecurrentConfig("conv", 17), "at most 16 taps"),
    ],
)
def test_sizes_that_the_kernels_cannot_have_are_named(kind: RecurrentConfig, problem: str) -> None:
    assert problem in str(unsupported(of_mixer(kind)))
    assert unsupported(of_mixer(DELTA)) is None
