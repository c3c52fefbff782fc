"""A plan runs what it names and nothing else; native as in torch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache as memo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.model.backends.native import load as load_native
from forerun.model.cache.base import KVCache
from forerun.model.config import RopeConfig
from forerun.model.kernels import native as kernels
from forerun.model.model import LayerPlan, Model
from tests.arrays import assert_close, same_bits
from tests.native.models import GATED, PER_LAYER, random_weights, reference, stored, text

CONFIG = replace(GATED, num_layers=4, head_dim=16, rope=RopeConfig(10_000.0, 16))
"""Heads this narrow have a phase more in the native kernels."""
WEIGHTS = random_weights(CONFIG)
PREFIX = text(70)
DRAFT = Segment(0, len(PREFIX), text(6, seed=1), (-1, 0, 0, 1, 2, 2))

needs_kernels = pytest.mark.skipif(kernels.reason() is not None, reason="no native kernels")
both = pytest.mark.parametrize("kind", ["torch", pytest.param("native", marks=needs_kernels)])
few = settings(max_examples=15, deadline=None)
plans = st.sets(st.integers(0, 7)).map(lambda chosen: LayerPlan(tuple(sorted(chosen))))


@memo
def model_of(kind: str) -> Model:
    """The torch decoder, or a native one, with quantized weights or the torch decoder's."""
    if kind == "torch":
        return reference(CONFIG, WEIGHTS)
    if kind == "float":
        return load_native(CONFIG, WEIGHTS, num_threads=2)
    return load_native(CONFIG, random_weights(CONFIG, "q8_0"), num_threads=2)


def cache_of(model: Model) -> KVCache:
    """A cache that holds the prefix in all layers."""
    cache = model.new_cache(1, 128, "fp32")
    model.forward(Batch((Segment(0, 0, PREFIX),)), cache)
    cache.keep(0, range(len(PREFIX)))
    return cache


used_cache_of = memo(cache_of)
"""The same, but other tests have left their scratch rows above the prefix."""


def rows(
    model: Model,
    plan: LayerPlan | None,
    cache: KVCache,
    *segments: Segment,
    taps: tuple[int, ...] = (),
) -> Floats:
    """Final states and taps, side by side."""
    hidden = model.forward(Batch(segments), cache, taps, plan)
    return np.concatenate([hidden.last, *hidden.taps], axis=-1)


def test_plans_are_spelled_by_layers() -> None:
    assert LayerPlan.of(3).sublayers == (0, 1, 2, 3, 4, 5)
    assert LayerPlan.of(3, exit=1).sublayers == (0, 1)
    assert LayerPlan.of(3, exit=2, skip_attn=[0, 2], skip_mlp=[1]).sublayers == (1, 2)


@both
def test_a_plan_of_all_is_no_plan(kind: str) -> None:
    model = model_of(kind)
    plain = rows(model, None, cache_of(model), DRAFT, taps=(0, 3))
    assert same_bits(rows(model, LayerPlan.of(4), cache_of(model), DRAFT, taps=(0, 3)), plain)


@both
@pytest.mark.parametrize("depth", [1, 3])
def test_an_exit_is_the_norm_of_the_layers_output(kind: str, depth: int) -> None:
    model, batch = model_of(kind), Batch((DRAFT,))
    tap = model.forward(batch, cache_of(model), (depth - 1,)).taps[0]
    plan = LayerPlan.of(4, exit=depth)
    hidden = model.forward(batch, cache_of(model), (depth - 1, 3), plan)
    assert same_bits(hidden.taps[0], tap)
    assert same_bits(hidden.taps[1], tap)
    size = np.sqrt((tap.astype(np.float64) ** 2).mean(-1, keepdims=True) + CONFIG.norm_eps)
    assert_close(hidden.last, tap / size * WEIGHTS["norm"].dequantize())


@both
@given(plan=plans, cut=st.integers(1, 5))
@few
def test_the_row_law_holds_within_a_plan(kind: str, plan: LayerPlan, cut: int) -> None:
    model = model_of(kind)
    cache = used_cache_of(model)
    whole = rows(model, plan, cache, DRAFT, taps=(1,))
    pieces = replace(DRAFT, stop=cut), replace(DRAFT, first=cut)
    parts = [rows(model, plan, cache, piece, taps=(1,)) for piece in pieces]
    assert same_bits(np.concatenate(parts), whole)


@both
@given(plan=plans)
@few
def test_what_a_plan_leaves_in_the_cache_changes_no_later_pass(kind: str, plan: LayerPlan) -> None:
    model = model_of(kind)
    cache = used_cache_of(model)
    expected = rows(model, None, cache, DRAFT)
    rows(model, plan, cache, replace(DRAFT, tokens=text(6, seed=2)))
    assert same_bits(rows(model, None, cache, DRAFT), expected)


@needs_kernels
@given(plan=plans)
@few
def test_native_plans_equal_the_torch_decoders(plan: LayerPlan) -> None:
    models = model_of("float"), model_of("torch")
    ours, theirs = (rows(m, plan, used_cache_of(m), DRAFT, taps=(0, 2, 3)) for m in models)
    assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


@needs_kernels
def test_plans_taking_turns_on_late_threads_change_nothing() -> None:
    """More threads than cores: some come back to a pass when the next, of another plan, has begun."""
    model = load_native(CONFIG, WEIGHTS, num_threads=6)
    turns = [LayerPlan.of(4, exit=1), None, LayerPlan(()), LayerPlan.of(4, skip_mlp=[0, 3])]
    cache = cache_of(model)
    expected = [rows(model, plan, cache, DRAFT) for plan in turns]
    for _ in range(50):
        for plan, states in zip(turns, expected, strict=True):
            assert same_bits(rows(model, plan, cache, DRAFT), states)


@memo
def sharing(kind: str) -> Model:
    """A model whose last layer reads the first's keys and values."""
    if kind == "torch":
        return reference(PER_LAYER, random_weights(PER_LAYER))
    return load_native(PER_LAYER, random_weights(PER_LAYER), num_threads=2)


@both
def test_layers_that_share_keys_skip_with_the_layer_that_has_them(kind: str) -> None:
    model = sharing(kind)
    plans = (LayerPlan.of(3, skip_attn=[0]), LayerPlan.of(3, skip_attn=[0, 2]))
    prefix = Segment(0, 0, PREFIX)
    cache = model.new_cache(1, 128, "fp32")
    used, fresh = (rows(model, plan, cache, prefix, taps=(0, 2)) for plan in plans)
    assert same_bits(used, fresh)
    rows(model, None, cache, prefix)
    assert same_bits(rows(model, plans[0], cache, prefix, taps=(0, 2)), fresh)
    others = LayerPlan.of(3, skip_attn=[2])
    assert not same_bits(rows(model, others, cache, prefix, taps=(0, 2)), fresh)


@needs_kernels
@given(chosen=st.sets(st.integers(0, 5)))
@few
def test_native_plans_of_shared_keys_equal_the_torch_decoders(chosen: set[int]) -> None:
    plan = LayerPlan(tuple(sorted(chosen)))
    prefix = Segment(0, 0, PREFIX)
    models = (sharing("native"), sharing("torch"))
    ours, theirs = (
        rows(m, plan, m.new_cache(1, 128, "fp32"), prefix, taps=(0, 1, 2)) for m in models
    )
    assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


def test_a_plan_skips_what_it_says() -> None:
    """Equal to weights whose skipped sublayers add nothing."""
    silent = dict(WEIGHTS)
    for name in ("layers.1.o", "layers.2.down"):
        silent[name] = stored(name, np.zeros(silent[name].shape, np.float32), "f32")
    model, other = reference(CONFIG, WEIGHTS), reference(CONFIG, silent)
    prefix = Segment(0, 0, PREFIX)
    expected = rows(other, None, other.new_cache(1, 128, "fp32"), prefix)
    plan = LayerPlan.of(4, skip_attn=[1], skip_mlp=[2])
    assert np.array_equal(rows(model, plan, model.new_cache(1, 128, "fp32"), prefix), expected)
