"""The row law: a row's bits are the same alone and in any company, prefilled, decoded or drafted, on any threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache as memo

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.cache.base import KVCache
from forerun.model.config import ModelConfig
from forerun.model.native_cache import NativeCache
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
    "flat": (replace(GATED, num_kv_heads=1, head_dim=48, rope=None), "q4_c"),
    "float": (replace(GATED, norm="layer", gated_mlp=False, activation="gelu"), "bf16"),
}

law = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
kinds = st.sampled_from(sorted(KINDS))
kvs = st.sampled_from(["fp32", "fp16", "int8", "k8v4", "int4"])
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


class InOrder(KVCache):
    """A native cache without sharing whose rows lie side by side."""

    def __init__(self, config: ModelConfig, num_slots: int, max_len: int, kv: Precision) -> None:
        super().__init__(num_slots, max_len)
        shape = (config.num_layers, config.num_kv_heads, config.head_dim, num_slots, max_len)
        self.native = _native.Cache(*shape, kv)

    def nbytes(self) -> int:
        return self.native.nbytes()

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)


def logits_and_path(
    model: NativeDecoder,
    cache: KVCache,
    slot: int,
    tokens: tuple[int, ...],
    draft: tuple[tuple[int, ...], tuple[int, ...], int],
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Logits of a tree below `tokens`, whose rows the cache may lack; the tokens of the kept path."""
    base = cache.length(slot)
    pending = tokens[base:]
    drafted, parents, chosen = draft
    nodes = tuple(range(-1, len(pending) - 1)) + tuple(p + len(pending) for p in parents)
    if isinstance(cache, InOrder):
        hidden = forward_in_order(model, cache, Segment(slot, base, pending + drafted, nodes))
        logits = model.head(hidden)
    else:
        logits = logits_of(model, cache, Segment(slot, base, pending + drafted, nodes))
    path = tree.path_to(len(pending) - 1 + chosen, nodes)
    cache.keep(slot, path)
    kept = tuple((pending + drafted)[i] for i in path)
    return logits[len(pending) - 1 :], tokens[:base] + kept


def forward_in_order(model: NativeDecoder, cache: InOrder, segment: Segment) -> torch.Tensor:
    hidden = torch.empty(segment.num_rows, model.config.hidden_size)
    every = [*range(2 * model.config.num_layers)]
    taps = torch.empty(0, 0, 0).numpy()
    model._native.forward(cache.native, [segment], None, hidden.numpy(), [], taps, every)
    return hidden


class Pair:
    """A paged cache and one in order that run the same sequences."""

    def __init__(self, model: NativeDecoder, kv: Precision, num_blocks: int) -> None:
        self.model = model
        self.paged = model.new_cache(3, MAX_LEN, kv, num_blocks)
        self.dense = InOrder(model.config, 3, MAX_LEN, kv)
        self.running: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By slot: the other cache's slot, and the tokens."""

    def open(self, tokens: tuple[int, ...]) -> None:
        opened = self.paged.open(tokens)
        if opened is not None:
            other = self.dense.open(tokens)
            assert other is not None
            self.running[opened[0]] = other[0], tokens

    def draft(self, slot: int, parents: tuple[int, ...], chosen: int) -> tuple[int, ...]:
        """What is kept of a tree that both compute; `chosen` is a node or, 0, its root."""
        twin, tokens = self.running[slot]
        rows = len(tokens) - self.paged.length(slot) + len(parents)
        if not self.paged.reserve(slot, rows):
            return tokens
        draft = text(len(parents), seed=len(tokens)), parents, chosen
        found, kept = logits_and_path(self.model, self.paged, slot, tokens, draft)
        expected, same = logits_and_path(self.model, self.dense, twin, tokens, draft)
        assert same_bits(found, expected)
        assert kept == same
        self.running[slot] = twin, (*kept, 1)
        return kept

    def cut(self, slot: int, length: int) -> None:
        twin, tokens = self.running[slot]
        for cache, own in ((self.paged, slot), (self.dense, twin)):
            cache.truncate(own, min(length, cache.length(own)))
        self.running[slot] = twin, tokens[: length + 1]

    def close(self, slot: int) -> None:
        twin, tokens = self.running.pop(slot)
        self.paged.close(slot, tokens)
        self.dense.close(twin, tokens)


@law
@given(kind=kinds, kv=kvs, num_blocks=st.integers(4, 8), data=st.data())
def test_shared_blocks_anywhere_have_the_bits_of_rows_in_order(
    kind: str, kv: Precision, num_blocks: int, data: st.DataObject
) -> None:
    """After any program of opening, drafting, keeping, forking, cutting and evicting."""
    assume(kv not in ("k8v4", "int4") or kind not in ("mixed", "flat"))  # heads of 48 dimensions
    pair = Pair(model_of(kind), kv, num_blocks)
    texts = [text(data.draw(bases)) for _ in range(2)]
    for _ in range(data.draw(st.integers(2, 6))):
        verb = data.draw(st.sampled_from(["open", "open", "draft", "draft", "cut", "close"]))
        if verb == "open" or not pair.running:
            pair.open((*data.draw(st.sampled_from(texts)), data.draw(st.integers(0, 1))))
        slot = data.draw(st.sampled_from(sorted(pair.running)))
        if verb in ("open", "draft"):
            parents = data.draw(trees())
            texts.append(pair.draft(slot, parents, data.draw(st.integers(0, len(parents)))))
        elif verb == "cut":
            pair.cut(slot, data.draw(st.integers(0, len(pair.running[slot][1]) - 1)))
        else:
            pair.close(slot)
            pair.paged.pool.evict(data.draw(st.integers(0, 1)))


def test_blocks_that_do_not_exist_are_refused() -> None:
    cache = _native.Cache(1, 1, 16, 1, 2 * CHUNK, "fp16", 1)
    for place in ((0, 0, 1), (0, 0, -1), (0, 2, 0), (0, -1, 0)):
        with pytest.raises(ValueError, match="no such cache block"):
            cache.place(*place)
    with pytest.raises(ValueError, match="no cache slot"):
        cache.place(1, 0, 0)
    with pytest.raises(ValueError, match="no such cache block"):
        cache.copy_block(0, 1)
    with pytest.raises(ValueError, match="move down"):  # no block yet
        cache.move(0, [1], 0)
