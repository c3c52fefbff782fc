"""The native index answers as its Python oracle does, to the last bit."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.base.ngram.texts import Texts, index_nbytes
from tests.oracles.suffix_index import SuffixIndex

_native = pytest.importorskip("forerun._native")

WORDS = st.lists(st.integers(-1, 2), max_size=30)
PIECES = st.lists(st.tuples(st.integers(0, 4), WORDS), max_size=12)
"""Tokens appended to one of five documents, in turn; the oldest may be forgotten in between."""
CAPACITIES = st.none() | st.integers(0, 200)
SHARES = st.sampled_from([0.05, 0.1, 0.25, 1 / 3, 0.5, 1.0])
LIMITS = st.tuples(
    st.integers(0, 20),
    st.integers(0, 12),
    st.floats(0.1, 6),
    st.floats(0, 3),
    SHARES,
    st.integers(1, 4),
)


def test_the_native_index_is_used_where_it_was_built() -> None:
    assert isinstance(Texts(4, 100).shared, _native.SuffixIndex)


@given(PIECES, WORDS, st.integers(1, 6), CAPACITIES, st.sampled_from([0.0, 0.5, 2.0]), LIMITS)
def test_the_native_index_answers_as_its_oracle(
    pieces: list[tuple[int, list[int]]],
    context: list[int],
    max_depth: int,
    capacity: int | None,
    score: float,
    limits: tuple[int, int, float, float, float, int],
) -> None:
    index, oracle = _native.SuffixIndex(max_depth, capacity), SuffixIndex(max_depth, capacity)
    for document, tokens in pieces:
        index.extend(document, tokens)
        oracle.extend(document, tokens)
        assert index.num_tokens == oracle.num_tokens
        for asked in (context, tokens):
            for most in (limits[0], 1000):
                assert index.occurrences(asked, most) == [*oracle.occurrences(asked, most)]
            expected = oracle.continuation(asked, score, *limits)
            assert index.continuation(asked, score, *limits) == expected


@given(st.integers(0, 2**32), st.integers(100, 1000))
def test_the_same_documents_are_forgotten(seed: int, capacity: int) -> None:
    index, oracle, rng = (
        _native.SuffixIndex(4, capacity),
        SuffixIndex(4, capacity),
        random.Random(seed),
    )
    for _ in range(80):
        document, tokens = rng.randrange(40), [rng.randrange(3) for _ in range(rng.randint(1, 6))]
        index.extend(document, tokens)
        oracle.extend(document, tokens)
        assert index.num_tokens == oracle.num_tokens
        assert index.occurrences(tokens, 1000) == [*oracle.occurrences(tokens, 1000)]


@pytest.mark.parametrize("document_len", [1, 7, 300])
def test_the_bound_on_bytes_holds(document_len: int) -> None:
    index, rng = _native.SuffixIndex(64, 3000), random.Random(0)
    most = 0
    for document in range(6000 // (document_len + 12)):
        for _ in range(document_len):
            index.extend(document, [rng.randrange(50)])
        most = max(most, sys.getsizeof(index))
    assert 3000 < most <= index_nbytes(3000)
    alone = _native.SuffixIndex(64)
    alone.extend(0, range(1000))
    assert 12_000 < sys.getsizeof(alone) <= index_nbytes(1000)


def test_what_cannot_be_is_refused() -> None:
    index = _native.SuffixIndex(4)
    with pytest.raises(ValueError, match="document"):
        index.extend(-1, [1])
    with pytest.raises(ValueError, match="max_depth"):
        _native.SuffixIndex(0)
    for factor, offset in ((-1.0, 0.0), (1.0, -1.0), (float("nan"), 0.0)):
        with pytest.raises(ValueError, match="nodes granted"):
            index.continuation([1], 0.0, 16, 7, factor, offset, 0.1)
