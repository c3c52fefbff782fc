"""The row law: a row's bits are the same alone and in any company, prefilled, decoded or drafted, on any threads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache as memo

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.nn.backends.native import NativeDecoder
from forerun.nn.backends.native import load as load_native
from forerun.nn.native_cache import NativeCache
from tests.native.models import (
    GATED,
    VOCAB,
    logits_of,
    native,
    prefill,
    random_weights,
    same_bits,
    text,
)

CHUNK = 64
MAX_LEN = 4 * CHUNK

KINDS = {
    "q4": (GATED, "q4_1"),
    "mixed": (replace(GATED, num_kv_heads=1, head_dim=48, rope=None), "q8_0"),
    "window": (replace(GATED, sliding_window=29, qk_norm=True), "q4_0"),
    "float": (replace(GATED, norm="layer", gated_mlp=False, activation="gelu"), "bf16"),
}

law = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
kinds = st.sampled_from(sorted(KINDS))
bases = st.one_of(
    st.integers(0, 40),
    st.integers(CHUNK - 12, CHUNK + 4),
    st.integers(2 * CHUNK - 20, 2 * CHUNK),
)


@memo
def model_of(kind: str, num_threads: int = 2) -> NativeDecoder:
    config, dtype = KINDS[kind]
    return native(config, dtype, num_threads)


def committed(model: NativeDecoder, tokens: tuple[int, ...], num_slots: int = 1) -> NativeCache:
    """A cache whose first slot holds `tokens`."""
    cache = model.new_cache(num_slots, MAX_LEN)
    if tokens:
        model.forward(Batch((Segment(0, 0, tokens),)), cache)
        cache.keep(0, range(len(tokens)))
    return cache


def step_by_step(
    model: NativeDecoder, cache: NativeCache, tokens: tuple[int, ...], slot: int = 0
) -> torch.Tensor:
    rows = []
    for token in tokens:
        rows.append(logits_of(model, cache, Segment(slot, cache.length(slot), (token,))))
        cache.keep(slot, [0])
    return torch.cat(rows)


@law
@given(kind=kinds, base=bases, num_rows=st.integers(1, 64), threads=st.sampled_from([1, 2]))
def test_a_chain_equals_its_steps(kind: str, base: int, num_rows: int, threads: int) -> None:
    model = model_of(kind, threads)
    prefix, tokens = text(base), text(num_rows, seed=1)
    together = logits_of(model, committed(model, prefix), Segment(0, base, tokens))
    other = model_of(kind, 3 - threads)
    assert same_bits(together, step_by_step(other, committed(other, prefix), tokens))


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, ...]:
    size = draw(st.integers(1, 40))
    return tuple(draw(st.integers(-1, i - 1)) for i in range(size))


@law
@given(kind=kinds, base=bases, parents=trees(), threads=st.sampled_from([1, 2]))
def test_a_tree_row_equals_its_path_alone(
    kind: str, base: int, parents: tuple[int, ...], threads: int
) -> None:
    model = model_of(kind, threads)
    prefix, tokens = text(base), text(len(parents), seed=2)
    rows = logits_of(model, committed(model, prefix), Segment(0, base, tokens, parents))
    for node in range(0, len(parents), 5):
        path = tree.path_to(node, parents)
        alone = step_by_step(model, committed(model, prefix), tuple(tokens[i] for i in path))
        assert same_bits(rows[path], alone)


@law
@given(kind=kinds, base=bases, parents=trees(), cut=st.integers(0, 39))
def test_a_tree_computed_in_two_pieces_is_the_same(
    kind: str, base: int, parents: tuple[int, ...], cut: int
) -> None:
    model = model_of(kind)
    cut = min(cut, len(parents))
    tokens, prefix = text(len(parents), seed=3), text(base)
    whole = logits_of(model, committed(model, prefix), Segment(0, base, tokens, parents))
    cache = committed(model, prefix)
    pieces = [Segment(0, base, tokens, parents, 0, cut), Segment(0, base, tokens, parents, cut)]
    rows = [logits_of(model, cache, piece) for piece in pieces if piece.num_rows]
    assert same_bits(torch.cat(rows), whole)


@law
@given(kind=kinds, base=bases, data=st.data())
def test_a_cache_built_by_keeps_and_truncates_is_as_if_prefilled(
    kind: str, base: int, data: st.DataObject
) -> None:
    model = model_of(kind)
    history = list(text(base))
    cache = committed(model, text(base))
    for turn in range(data.draw(st.integers(1, 4))):
        parents = data.draw(trees())
        tokens = text(len(parents), seed=10 + turn)
        if len(history) + len(tokens) + 2 > MAX_LEN:
            break
        model.forward(Batch((Segment(0, len(history), tokens, parents),)), cache)
        path = tree.path_to(data.draw(st.integers(-1, len(parents) - 1)), parents)
        cache.keep(0, path)
        history += [tokens[i] for i in path]
        if data.draw(st.booleans()):
            length = data.draw(st.integers(max(0, len(history) - 9), len(history)))
            cache.truncate(0, length)
            history = history[:length]
    last = logits_of(model, cache, Segment(0, len(history), (1, 2)))
    assert same_bits(last, prefill(model, (*history, 1, 2), MAX_LEN)[-2:])


@law
@given(kind=kinds, lengths=st.lists(st.integers(0, 150), min_size=2, max_size=4), data=st.data())
def test_sequences_of_a_batch_do_not_meet(
    kind: str, lengths: list[int], data: st.DataObject
) -> None:
    model = model_of(kind)
    cache = model.new_cache(len(lengths), MAX_LEN)
    segments, alone = [], []
    for slot, length in enumerate(lengths):
        prefix, parents = text(length, seed=slot), data.draw(trees())
        if length:
            model.forward(Batch((Segment(slot, 0, prefix),)), cache)
            cache.keep(slot, range(length))
        tokens = text(len(parents), seed=20 + slot)
        segments.append(Segment(slot, length, tokens, parents))
        single = committed(model, prefix)
        alone.append(logits_of(model, single, Segment(0, length, tokens, parents)))
    assert same_bits(logits_of(model, cache, *segments), torch.cat(alone))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_instruction_sets_agree_to_the_bit(kind: str) -> None:
    config, dtype = KINDS[kind]
    weights = random_weights(config, dtype)
    results = []
    for isa in _native.runnable_isas():
        model = load_native(config, weights, num_threads=2, isa=isa)
        cache = committed(model, text(100))
        results.append(
            logits_of(model, cache, Segment(0, 100, text(9, 1), (-1, 0, 0, 1, 2, 2, 5, -1, 7)))
        )
    assert len(results) >= 1
    assert all(same_bits(results[0], other) for other in results[1:])


def test_a_row_with_nan_harms_only_those_who_see_it() -> None:
    config, dtype = KINDS["q4"]
    weights = random_weights(config, dtype)
    embed = weights["embed"].dequantize()
    embed[5] = torch.nan
    from tests.native.models import stored

    weights["embed"] = stored("embed", embed.numpy(), "f32")
    model = load_native(config, weights, num_threads=2)
    clean = tuple(7 if token == 5 else token for token in text(30, seed=9))
    parents = (-1, *([0] * 3), 1, 2)
    cache = committed(model, clean)
    healthy = logits_of(model, cache, Segment(0, 30, (1, 2, 3, 4, 6, 7), parents))
    sick = logits_of(model, cache, Segment(0, 30, (1, 5, 3, 4, 6, 7), parents))
    assert sick[[1, 4]].isnan().all()
    assert same_bits(sick[[0, 2, 3, 5]], healthy[[0, 2, 3, 5]])
    again = logits_of(model, cache, Segment(0, 30, (1, 2, 3, 4, 6, 7), parents))
    assert same_bits(again, healthy)


def test_vocabulary_is_used_whole() -> None:
    assert prefill(model_of("q4"), text(3)).shape == (3, VOCAB)


@law
@given(kind=kinds, is_half=st.booleans(), data=st.data())
def test_pages_may_lie_anywhere(kind: str, is_half: bool, data: st.DataObject) -> None:
    """After any program of trees, kept paths, cuts and reuse a scattered cache has the bits of one in order."""
    model = model_of(kind)
    dtype = torch.float16 if is_half else torch.float32
    pages = data.draw(st.permutations(range(2 * MAX_LEN // CHUNK)))
    caches = [scattered(model, dtype, None), scattered(model, dtype, pages)]
    tokens = text(data.draw(bases))
    for _ in range(data.draw(st.integers(1, 4))):
        slots = {cache.open((*tokens, 1)) for cache in caches}
        assert len(slots) == 1
        ((slot, base),) = slots
        parents = data.draw(trees())
        pending = (*tokens, 1)[base:]
        nodes = tuple(range(-1, len(pending) - 1)) + tuple(p + len(pending) for p in parents)
        drafted = text(len(parents), seed=base)
        segment = Segment(slot, base, pending + drafted, nodes)
        if base + len(segment.tokens) > MAX_LEN:
            break
        first, second = (logits_of(model, cache, segment) for cache in caches)
        assert same_bits(first, second)
        path = tree.path_to(data.draw(st.integers(0, len(nodes) - 1)), nodes)
        tokens = (*tokens, 1)[:base] + tuple(segment.tokens[i] for i in path)
        length = data.draw(st.integers(0, len(tokens)))
        for cache in caches:
            cache.keep(slot, path)
            cache.close(slot, tokens)
            cache.truncate(slot, length)
        tokens = tokens[:length]


def scattered(model: NativeDecoder, dtype: torch.dtype, pages: list[int] | None) -> NativeCache:
    cache = model.new_cache(2, MAX_LEN, dtype)
    shape = (2, model.config.num_kv_heads, model.config.head_dim, 2, MAX_LEN)
    cache.native = _native.Cache(*shape, dtype == torch.float16, pages or ())
    return cache


@pytest.mark.parametrize("pages", [[0], [0, 0], [1, 2], [-1, 0], [0, 1, 2]])
def test_a_page_table_that_is_no_order_of_the_pages_is_refused(pages: list[int]) -> None:
    with pytest.raises(ValueError, match="each page once"):
        _native.Cache(1, 1, 16, 1, 2 * CHUNK, True, pages)
