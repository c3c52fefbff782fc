"""The native tables and the native tree answer as their Python oracles do, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.random import Noise
from forerun.core.types import TopK
from forerun.drafters.base.tree_noise import SPREAD
from forerun.system.device import resident_nbytes
from tests.oracles import ngram_model as oracle
from tests.oracles.growth import TreeNoise, native_noises
from tests.oracles.suffix_index import SuffixIndex
from tests.oracles.token_table import (
    ENTRY,
    ENTRY_NBYTES,
    SET_NBYTES,
    WAYS,
    FileTable,
    LiveTable,
    context_hashes,
)

_native = pytest.importorskip("forerun._native")

WORDS = st.lists(st.integers(0, 4), max_size=30)
ROWS = st.lists(
    st.tuples(
        WORDS, st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1, width=32)), max_size=8)
    ),
    max_size=30,
)
SETS = st.sampled_from([1, 2, 64])
ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 0xFFFF),
        st.integers(0, 255),
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255)), max_size=5),
    ),
    max_size=20,
)


def learned(table, rows) -> None:
    for tokens, found in rows:
        likeliest = dict(found)
        table.learn(tokens, [*likeliest], [*likeliest.values()])


def packed(buckets, token_nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    data, offsets = b"", [0]
    for entries in buckets:
        for mark, size, tokens in entries:
            data += mark.to_bytes(2, "little") + bytes([size, len(tokens)])
            data += b"".join(t.to_bytes(token_nbytes, "little") + bytes([s]) for t, s in tokens)
        offsets.append(len(data))
    return np.array(offsets, np.uint32), np.frombuffer(data, np.uint8)


NOISES = st.none() | st.builds(
    TreeNoise,
    st.builds(Noise, st.integers(0, 2**63 - 1), st.integers(0, 9)),
    st.integers(0, 10_000),
    st.sampled_from([1e-5, 0.3, 0.7, 1.0, 2.0, 100.0]),
    st.sampled_from([1.0, 0.9, 0.5]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0, 1, 3]),
    st.just(SPREAD),
)


@given(
    ROWS,
    SETS,
    st.integers(1, 4),
    st.lists(ENTRIES, min_size=1, max_size=3),
    st.sampled_from([2, 3]),
    WORDS,
    st.lists(st.tuples(WORDS, st.integers(0, 12)), max_size=3),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.booleans(),
    st.lists(NOISES, min_size=3, max_size=3),
)
def test_the_native_trees_are_those_of_their_oracle(
    rows, num_sets, order, buckets, token_nbytes, past, asked, min_chance, has_file, noises
) -> None:
    # marks that contexts of the test have
    buckets = [
        [(next(context_hashes([t % 5], 1)) & 0xFFFF, size, tokens) for t, size, tokens in entries]
        for entries in buckets
    ]
    arrays = packed(buckets, token_nbytes)
    nbytes = num_sets * SET_NBYTES
    trees = []
    num_nodes = [most for _, most in asked]
    seen = noises[: len(asked)], native_noises(noises[: len(asked)])
    for module, grow in ((_native, _native.grow_trees), (None, oracle.grow_trees)):
        live = (module.LiveTable if module else LiveTable)(order, nbytes)
        learned(live, rows)
        new_index = module.SuffixIndex if module else SuffixIndex
        shared, texts = new_index(8), [new_index(8) for _ in asked]
        shared.extend(0, past)
        for i, (text, (words, _)) in enumerate(zip(texts, asked, strict=True), 1):
            text.extend(0, words)
            shared.extend(i, words[:10])
        file = (
            (module.FileTable if module else FileTable)(*arrays, token_nbytes) if has_file else None
        )
        assert live.__sizeof__() == nbytes
        trees.append(
            grow(texts, shared, file, live, num_nodes, min_chance, seen[module is _native])
        )
    assert trees[0] == trees[1]


LOGITS = st.floats(width=32) | st.floats(-20, 2, width=32)


@st.composite
def verified_trees(draw) -> tuple:
    """A tree and what the target said at its rows, of views that are not contiguous."""
    num, k = draw(st.integers(0, 4)), draw(st.integers(1, 8))
    tokens = draw(st.lists(st.integers(0, 4), min_size=num, max_size=num))
    parents = [draw(st.integers(-1, i - 1)) for i in range(num)]
    rows = st.lists(
        st.permutations(range(12)).map(lambda ids: ids[:k]), min_size=num + 1, max_size=num + 1
    )
    ids = np.pad(np.array(draw(rows)), ((0, 0), (0, 2)))[:, :k]
    numbers = st.lists(LOGITS, min_size=num + 1, max_size=num + 1)
    logits = np.array([draw(numbers) for _ in range(k)], np.float32).T.copy()
    logits = np.pad(logits, ((0, 0), (1, 1)))[:, 1:-1]
    top = TopK(ids, logits, np.array(draw(numbers), np.float32))
    return draw(WORDS), tokens, parents, top


@given(st.lists(verified_trees(), max_size=3), SETS, st.integers(1, 4))
def test_the_native_table_learns_trees_as_its_oracle_does(trees, num_sets, order) -> None:
    """Together or one by one, and as `TopK.probs` has the chances."""
    nbytes = num_sets * SET_NBYTES
    tables = [_native.LiveTable(order, nbytes) for _ in range(3)] + [LiveTable(order, nbytes)]
    with np.errstate(all="ignore"):
        for table in tables[::3]:
            table.learn_trees(trees)
        for tree in trees:
            tables[1].learn_trees([tree])
            tail, tokens, parents, top = tree
            tails = [tail]
            for token, parent in zip(tokens, parents, strict=True):
                tails.append([*tails[1 + parent], token])
            probs = top.probs()
            for words, likeliest, row in zip(tails, top.ids.tolist(), probs.tolist(), strict=True):
                tables[2].learn(words, likeliest, row)
        found = [np.frombuffer(table.entries(), ENTRY).tolist() for table in tables]
    assert str(found[0]) == str(found[1]) == str(found[2]) == str(found[3])


@given(ROWS, st.sampled_from([1, 2, 5]), st.integers(1, 4), st.integers(1, 60))
def test_the_native_entries_are_those_of_the_oracle(rows, num_sets, order, spare) -> None:
    """Also where ages have run out again and again."""
    nbytes = num_sets * SET_NBYTES
    most_age = num_sets * WAYS + spare
    entries = []
    for live in (_native.LiveTable(order, nbytes, most_age), LiveTable(order, nbytes)):
        learned(live, rows)
        known = np.frombuffer(live.entries(), ENTRY)
        entries.append([known[name].tolist() for name in ("hash", "total", "tokens", "counts")])
    assert str(entries[0]) == str(entries[1])  # NaN is equal to NaN


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="most_age"):
        _native.LiveTable(1, SET_NBYTES, WAYS)
    table, none = _native.LiveTable(1, 0), np.zeros(1, np.float32)
    row = np.zeros((1, 2), np.float32)
    ids = row.astype(np.int64)
    two = [np.repeat(each, 2, axis=0) for each in (ids, row, none)]
    table.learn_trees([([1], [], [], TopK(ids, row, none)), ([1], [2], [-1], TopK(*two))])
    turned = np.asfortranarray(two[0])[:1]
    for tokens, parents, top, message in (
        ([2], [-1], TopK(ids, row, none), "a row for"),
        ([], [], TopK(ids[:, :1], row, none), "a row for"),
        ([], [], TopK(turned, row, none), "a row for"),
        ([2], [0], TopK(*two), "parents come"),
    ):
        with pytest.raises(ValueError, match=message):
            table.learn_trees([([1], tokens, parents, top)])
    with pytest.raises(ValueError, match="budgets"):
        _native.grow_trees([], _native.SuffixIndex(1), None, table, [1], 0.1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured on Linux")
def test_a_live_table_takes_memory_as_it_learns() -> None:
    before = resident_nbytes()
    table = _native.LiveTable(1, 256 << 20)
    for token in range(1000):
        table.learn([token], [1], [0.5])
    assert resident_nbytes() - before < 16 << 20
    assert len(table.entries()) == 1000 * ENTRY_NBYTES
