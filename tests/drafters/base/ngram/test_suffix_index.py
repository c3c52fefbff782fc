from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.suffix_index import OFFSET_BITS

SuffixIndex = pytest.importorskip("forerun._native").SuffixIndex

WORDS = st.lists(st.integers(0, 2), max_size=30)
PIECES = st.lists(st.tuples(st.integers(0, 2), WORDS), max_size=8)
"""Tokens appended to one of three documents, in turn."""


def filled(pieces: list[tuple[int, list[int]]], max_depth: int = 5):
    index = SuffixIndex(max_depth)
    for document, tokens in pieces:
        index.extend(document, tokens)
    return index


def documents(pieces: list[tuple[int, list[int]]]) -> dict[int, list[int]]:
    texts: dict[int, list[int]] = {}
    for document, tokens in pieces:
        texts.setdefault(document, []).extend(tokens)
    return texts


def match_length(text: list[int], offset: int, context: list[int], max_depth: int) -> int:
    length = 0
    while length < min(offset, len(context), max_depth):
        if text[offset - 1 - length] != context[-1 - length]:
            break
        length += 1
    return length


@given(PIECES, WORDS, st.integers(1, 5))
def test_occurrences_are_those_a_scan_finds(
    pieces: list[tuple[int, list[int]]], context: list[int], max_depth: int
) -> None:
    expected = [
        (length, document << OFFSET_BITS | offset)
        for document, text in documents(pieces).items()
        for offset in range(1, len(text))
        if (length := match_length(text, offset, context, max_depth))
    ]
    occurrences = list(filled(pieces, max_depth).occurrences(context, 1000))
    assert sorted(occurrences) == sorted(expected)
    lengths = [length for length, _ in occurrences]
    assert lengths == sorted(lengths, reverse=True)


@given(PIECES, WORDS, st.integers(0, 5))
def test_a_limit_leaves_out_the_shortest_matches(
    pieces: list[tuple[int, list[int]]], context: list[int], most: int
) -> None:
    index = filled(pieces)
    everything = list(index.occurrences(context, 1000))
    assert list(index.occurrences(context, most)) == everything[:most]


@given(PIECES, WORDS)
def test_tokens_one_by_one_make_the_same_index_as_all_at_once(
    pieces: list[tuple[int, list[int]]], context: list[int]
) -> None:
    one_by_one = [(document, [token]) for document, tokens in pieces for token in tokens]
    assert list(filled(one_by_one).occurrences(context, 1000)) == list(
        filled(pieces).occurrences(context, 1000)
    )


def test_the_oldest_documents_are_forgotten_first() -> None:
    index = SuffixIndex(max_depth=4, capacity=400)
    for document in range(50):
        index.extend(document, [7, document, 7, 100 + document])
    documents = {p >> OFFSET_BITS for _, p in index.occurrences([7], 1000)}
    assert documents == set(range(min(documents), 50))
    assert 8 <= len(documents) <= 14  # each costs 4 tokens and 24 for itself


def test_a_document_too_large_to_keep_begins_anew() -> None:
    index = SuffixIndex(max_depth=4, capacity=100)
    for token in range(500):
        index.extend(0, [token])
    assert 0 < index.num_tokens <= 100
    ((length, _),) = index.occurrences([498], 10)
    assert length == 1
    assert index.continuation([498], 0.0, 10, 1, 1.0, 0.0, 0.1)[0] == (499,)
