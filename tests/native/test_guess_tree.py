"""The native tables and the native tree answer as their Python oracles do, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters._guess_tree import grow_in_python
from forerun.drafters._suffix_index import SuffixIndex
from forerun.drafters._token_table import ENTRY, ENTRY_NBYTES, WAYS, FileTable, LiveTable

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


@given(
    ROWS,
    SETS,
    st.integers(1, 4),
    st.lists(ENTRIES, min_size=1, max_size=3),
    st.sampled_from([2, 3]),
    WORDS,
    WORDS,
    st.integers(0, 12),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.booleans(),
)
def test_the_native_tree_is_that_of_its_oracle(
    rows, num_sets, order, buckets, token_nbytes, text, context, num_nodes, min_chance, has_file
) -> None:
    from forerun.drafters._token_table import context_hashes

    # marks that contexts of the test have
    buckets = [
        [(next(context_hashes([t % 5], 1)) & 0xFFFF, size, tokens) for t, size, tokens in entries]
        for entries in buckets
    ]
    arrays = packed(buckets, token_nbytes)
    nbytes = num_sets * WAYS * ENTRY_NBYTES
    trees = []
    for module, grow in ((_native, _native.grow_tree), (None, grow_in_python)):
        live = (module.LiveTable if module else LiveTable)(order, nbytes)
        learned(live, rows)
        index = (module.SuffixIndex if module else SuffixIndex)(8)
        index.extend(0, text)
        index.extend(1, context)
        file = (
            (module.FileTable if module else FileTable)(*arrays, token_nbytes) if has_file else None
        )
        assert live.__sizeof__() == nbytes
        trees.append(grow(context, file, live, [index], num_nodes, min_chance))
    assert trees[0] == trees[1]


@given(ROWS, ROWS, st.sampled_from([1, 2, 5]), st.integers(1, 4), st.integers(1, 60))
def test_the_native_entries_are_those_of_the_oracle(old, new, num_sets, order, spare) -> None:
    """Also where ages have run out again and again."""
    nbytes = num_sets * WAYS * ENTRY_NBYTES
    most_age = num_sets * WAYS + spare
    entries = []
    for live in (_native.LiveTable(order, nbytes, most_age), LiveTable(order, nbytes)):
        learned(live, old)
        other = type(live)(order, nbytes)
        learned(other, new)
        live.absorb(other.entries())
        rows = np.frombuffer(live.entries(), ENTRY)
        entries.append([rows[name].tolist() for name in ("hash", "total", "tokens", "counts")])
    assert str(entries[0]) == str(entries[1])  # NaN is equal to NaN


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="most_age"):
        _native.LiveTable(1, WAYS * ENTRY_NBYTES, WAYS)
    with pytest.raises(ValueError, match="part of an entry"):
        _native.LiveTable(1, 0).absorb(b"torn")
