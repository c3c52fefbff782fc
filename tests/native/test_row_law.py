"""The native row law beyond tests/model/test_row_law.py: instruction sets, NaN, and blocks anywhere in the pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as memo

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.cache.base import KVCache
from forerun.model.cache.native import NativeCache
from forerun.model.config import ModelConfig
from tests.arrays import same_bits
from tests.native.models import (
    KINDS,
    VOCAB,
    logits_of,
    native,
    prefill,
    random_weights,
    stored,
    text,
)

CHUNK = 64
MAX_LEN = 4 * CHUNK

law = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
kinds = st.sampled_from(sorted(KINDS))
attending = kinds.filter(lambda kind: not KINDS[kind][0].is_recurrent)
KVS = ("fp32", "fp16", "int8", "k8v4", "int4")
kvs = st.sampled_from(KVS)
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
    for start in range(0, len(tokens), 64):  # a recurrent state goes on by one chunk at a time
        piece = tokens[start : start + 64]
        model.forward(Batch((Segment(0, start, piece),)), cache)
        cache.keep(0, range(len(piece)))
    return cache


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, ...]:
    size = draw(st.integers(1, 40))
    return tuple(draw(st.integers(-1, i - 1)) for i in range(size))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    config, dtype = KINDS[kind]
    weights = random_weights(config, dtype)
    results = []
    for num_threads in (1, 2, 3, 5, 16, 128):
        model = load_native(config, weights, num_threads=num_threads)
        cache = committed(model, text(200))  # two runs of chunks
        few = logits_of(model, cache, Segment(0, 200, text(5, 1), (-1, 0, 0, 1, -1)))
        more = logits_of(model, cache, Segment(0, 200, text(12, 1)))  # norms in phases of their own
        results.append(np.concatenate([few, more]))
    assert all(same_bits(results[0], other) for other in results)


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
    embed[5] = np.nan
    weights["embed"] = stored("embed", embed, "f32")
    model = load_native(config, weights, num_threads=2)
    clean = tuple(7 if token == 5 else token for token in text(30, seed=9))
    parents = (-1, *([0] * 3), 1, 2)
    cache = committed(model, clean)
    healthy = logits_of(model, cache, Segment(0, 30, (1, 2, 3, 4, 6, 7), parents))
    sick = logits_of(model, cache, Segment(0, 30, (1, 5, 3, 4, 6, 7), parents))
    assert np.isnan(sick[[1, 4]]).all()
    assert same_bits(sick[[0, 2, 3, 5]], healthy[[0, 2, 3, 5]])
    again = logits_of(model, cache, Segment(0, 30, (1, 2, 3, 4, 6, 7), parents))
    assert same_bits(again, healthy)


SICK = {5: np.nan, 6: np.inf, 8: 1e30}
"""Tokens whose embeddings are no numbers, or none that a model has."""
SLOW = {("portable", kv) for kv in KVS if kv != "k8v4"} if len(_native.runnable_isas()) > 1 else ()


@memo
def sick_model(kind: str, isa: str) -> NativeDecoder:
    config, dtype = KINDS[kind]
    weights = random_weights(config, dtype)
    embed = weights["embed"].dequantize()
    for token, value in SICK.items():
        embed[token] = value
    weights["embed"] = stored("embed", embed, "f32")
    return load_native(config, weights, num_threads=2, isa=isa)


def healthy_text(num_tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(9 if token in SICK else token for token in text(num_tokens, seed))


# The portable kernels, many times slower, give the bits of the others (`test_instruction_sets_agree_to_the_bit`).
@pytest.mark.parametrize(
    ("isa", "kv"),
    [
        pytest.param(isa, kv, marks=[pytest.mark.slow] if (isa, kv) in SLOW else [])
        for isa in _native.runnable_isas()
        for kv in KVS
    ],
)
@settings(law, max_examples=25)
@given(
    kind=st.sampled_from(["q4", "window", "sandwich", "super"]),
    base=st.integers(CHUNK - 4, CHUNK + 2) | st.integers(2 * CHUNK - 4, 2 * CHUNK + 2),
    parents=st.integers(2, 9).map(lambda size: tuple(range(-1, size - 1))) | trees(),
    sick=st.sampled_from(sorted(SICK)),
    data=st.data(),
)
def test_a_row_of_any_numbers_harms_only_those_who_see_it(
    isa: str,
    kv: Precision,
    kind: str,
    base: int,
    parents: tuple[int, ...],
    sick: int,
    data: st.DataObject,
) -> None:
    """Chains and trees at the borders of chunks, beside another sequence."""
    model = sick_model(kind, isa)
    cache = model.new_cache(2, MAX_LEN, kv)
    segments = []
    for slot, length in enumerate((base, data.draw(bases))):
        model.forward(Batch((Segment(slot, 0, healthy_text(length, slot)),)), cache)
        cache.keep(slot, range(length))
        segments.append(Segment(slot, length, healthy_text(len(parents), 7 + slot), parents))
    at = data.draw(st.integers(0, len(parents) - 1))
    tokens = (*segments[0].tokens[:at], sick, *segments[0].tokens[at + 1 :])
    found = [
        logits_of(model, cache, Segment(0, base, drafted, parents), segments[1])
        for drafted in (segments[0].tokens, tokens)
    ]
    untouched = [i for i in range(len(parents)) if at not in tree.path_to(i, parents)]
    untouched += range(len(parents), 2 * len(parents))
    assert same_bits(*(logits[untouched] for logits in found))
    assert np.isfinite(found[0]).all()


def test_vocabulary_is_used_whole() -> None:
    assert prefill(model_of("q4"), text(3)).shape == (3, VOCAB)


class InOrder(KVCache):
    """A native cache without sharing whose rows lie side by side."""

    def __init__(self, config: ModelConfig, num_slots: int, max_len: int, kv: Precision) -> None:
        super().__init__(num_slots, max_len)
        widths = [config.value_dim(i) for i in range(config.num_layers)]
        heads = config.stored_heads()
        self.native = _native.Cache(heads, num_slots, max_len, kv, value_dims=widths)

    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        self.native.move(slot, rows, start)

    def _copy_block(self, source: int, target: int) -> None:
        """Rows of a slot lie nowhere else."""


def logits_and_path(
    model: NativeDecoder,
    cache: KVCache,
    slot: int,
    tokens: tuple[int, ...],
    draft: tuple[tuple[int, ...], tuple[int, ...], int],
) -> tuple[Floats, tuple[int, ...]]:
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


def forward_in_order(model: NativeDecoder, cache: InOrder, segment: Segment) -> Floats:
    hidden = np.empty((segment.num_rows, model.config.hidden_size), np.float32)
    aux = np.empty((0, 0, 0), np.float32)
    model._native.forward(cache.native, [segment], None, hidden, [], aux)
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
            other = self.dense.open(tokens, reuse=False)
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
@given(kind=attending, kv=kvs, num_blocks=st.integers(4, 8), data=st.data())
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
    cache = _native.Cache([(1, 16)], 1, 2 * CHUNK, "fp16", 1)
    for place in ((0, 0, 1), (0, 0, -1), (0, 2, 0), (0, -1, 0)):
        with pytest.raises(ValueError, match="no such cache block"):
            cache.place(*place)
    with pytest.raises(ValueError, match="no cache slot"):
        cache.place(1, 0, 0)
    with pytest.raises(ValueError, match="no such cache block"):
        cache.copy_block(0, 1)
    with pytest.raises(ValueError, match="move down"):  # no block yet
        cache.move(0, [1], 0)
