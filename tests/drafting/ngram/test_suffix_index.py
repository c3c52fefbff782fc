from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafting.held import held_nbytes
from forerun.drafting.ngram.suffix_index import (
    OFFSET_BITS,
    SuffixIndex,
    index_nbytes,
    new_index,
)
from forerun.model.kernels import native

WORDS = st.lists(st.integers(0, 2), max_size=30)
PIECES = st.lists(st.tuples(st.integers(0, 2), WORDS), max_size=8)
"""Tokens appended to one of three documents, in turn."""


def filled(pieces: list[tuple[int, list[int]]], max_depth: int = 5) -> SuffixIndex:
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
    found = list(filled(pieces, max_depth).occurrences(context, 1000))
    assert sorted(found) == sorted(expected)
    lengths = [length for length, _ in found]
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


@given(PIECES)
def test_token_reads_the_documents_back(pieces: list[tuple[int, list[int]]]) -> None:
    index = filled(pieces)
    for document, text in documents(pieces).items():
        if text:
            start, end = document << OFFSET_BITS, document << OFFSET_BITS | len(text)
            assert [*index.tokens(start, len(text) + 5)] == text
            assert index.followers([start, end]) == {text[0]: [start + 1]}


def test_the_oldest_documents_are_forgotten_first() -> None:
    index = SuffixIndex(max_depth=4, capacity=400)
    for document in range(50):
        index.extend(document, [7, document, 7, 100 + document])
    found = {p >> OFFSET_BITS for _, p in index.occurrences([7], 1000)}
    assert found == set(range(min(found), 50))
    assert 8 <= len(found) <= 14  # each costs 4 tokens and 24 for itself


def test_a_document_too_large_to_keep_begins_anew() -> None:
    index = SuffixIndex(max_depth=4, capacity=100)
    for token in range(500):
        index.extend(0, [token])
    assert 0 < index.num_tokens <= 100
    ((length, position),) = index.occurrences([498], 10)
    assert (length, [*index.tokens(position, 1)]) == (1, [499])


@pytest.mark.parametrize("document_len", [1, 7, 300])
def test_the_bound_on_bytes_holds(document_len: int) -> None:
    index, rng = SuffixIndex(max_depth=64, capacity=3000), random.Random(0)
    most = 0
    for document in range(6000 // (document_len + 12)):
        for _ in range(document_len):
            index.extend(document, [rng.randrange(50)])
        most = max(most, held_nbytes(index._documents, index._order))
    assert 3000 < most <= index_nbytes(3000)
    alone = SuffixIndex(max_depth=64)
    alone.extend(0, range(1000))
    assert held_nbytes(alone._documents, alone._order) <= index_nbytes(1000)


def test_without_the_native_extension_the_index_is_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    assert isinstance(new_index(4, 100), SuffixIndex)
