"""Counting against a dict, and the cut against its size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.base.ngram import counting
from forerun.drafters.base.ngram.token_table import pack
from tests.oracles.token_table import FileTable, context_hashes, unpack_count

_native = pytest.importorskip("forerun._native")

WORDS = st.lists(st.integers(0, 3), max_size=12)
TEXTS = st.lists(st.tuples(WORDS, WORDS), max_size=6)


def followers(texts, order: int) -> list[dict[tuple[int, ...], Counter[int]]]:
    """What follows the contexts of each length in the answers: the oracle."""
    counters = [defaultdict(Counter) for _ in range(order)]
    for prompt, answer in texts:
        tokens = [*prompt, *answer]
        for position in range(len(prompt), len(tokens)):
            for n in range(1, min(order, position) + 1):
                counters[n - 1][tuple(tokens[position - n : position])][tokens[position]] += 1
    return counters


def hash_of(context: Sequence[int]) -> int:
    *_, last = context_hashes(context, len(context))
    return last


@given(TEXTS, st.integers(1, 4))
def test_contexts_are_counted_as_by_a_dict(texts, order: int) -> None:
    counted = counting.count_contexts(texts, order)
    assert counted.num_tokens == sum(len(answer) for _, answer in texts)
    assert len(counted.levels) == order
    for level, expected in zip(counted.levels, followers(texts, order), strict=True):
        known = {hash_of(c): f for c, f in expected.items() if f.total() >= counting.MIN_COUNT}
        assert [*level.hashes] == sorted(known)
        for i, hash in enumerate(level.hashes.tolist()):
            ranked = sorted(known[hash].items(), key=lambda pair: (-pair[1], pair[0]))
            assert level.counts[i] == known[hash].total()
            pairs = zip(level.tokens[i].tolist(), level.token_counts[i].tolist(), strict=True)
            assert [pair for pair in pairs if pair[0] >= 0] == ranked[: counting.NUM_KEPT]


@given(TEXTS, st.integers(1, 3), st.sampled_from([2, 3]))
def test_a_file_says_what_was_counted(texts, order: int, token_nbytes: int) -> None:
    made = counting.make(texts, order, 100_000, token_nbytes)
    file = FileTable(made.offsets, made.data, token_nbytes)
    num_found = 0
    for expected in followers(texts, order):
        for context, follows in expected.items():
            entry = file.find(hash_of(context))
            if follows.total() < counting.MIN_COUNT:
                assert entry is None
            if len(context) == 1 and follows.total() >= counting.MIN_COUNT:
                assert entry is not None
            if entry is None:
                continue
            num_found += 1
            assert entry[0] == follows.total()
            assert len(entry[1]) == min(len(follows), counting.NUM_KEPT)
            for token, count in entry[1]:
                assert count == pytest.approx(follows[token], abs=entry[0] / 255)
    assert num_found == made.num_contexts


@given(st.integers(1, 10**7))
def test_a_count_survives_in_a_byte(count: int) -> None:
    hashes, one = np.array([1 << 40], np.uint64), np.array([[7]])
    _, data = pack(hashes, np.array([count]), one, np.array([[255]]), 2)
    unpacked = unpack_count(int(data[2]))
    assert unpacked <= count
    assert unpacked > count * 16 / 17 or count >= 1 << 16
    if count < 32:
        assert unpacked == count


@given(TEXTS, st.integers(-2000, 400))
def test_a_table_keeps_within_its_size(texts, nbytes: int) -> None:
    made = counting.make(texts, 3, nbytes, 2)
    assert made.nbytes <= max(nbytes, 8)  # nothing takes 8 bytes
    _native.FileTable(made.offsets, made.data, 2)


def test_what_corrects_shorter_contexts_is_kept_first() -> None:
    # After 2 comes 3, but after 1 2 comes 4; that 3 comes after 5 2 is known from 2.
    answers = [(1, 2, 4), *[(5, 2, 3)] * 3] * 20
    texts = [((), answer) for answer in answers]
    whole = counting.make(texts, 2, 10_000, 2)
    assert FileTable(whole.offsets, whole.data, 2).find(hash_of((5, 2))) is not None
    singles = counting.make(texts, 1, 10_000, 2)
    small = counting.make(texts, 2, singles.nbytes + 12, 2)
    file = FileTable(small.offsets, small.data, 2)
    assert file.find(hash_of((1, 2))) is not None
    assert file.find(hash_of((5, 2))) is None
    assert all(file.find(hash_of((token,))) is not None for token in (1, 2, 5))
