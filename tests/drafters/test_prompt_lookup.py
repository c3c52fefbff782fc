from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.prompt_lookup import NgramIndex, Options, PromptLookup
from forerun.drafting.held import held_nbytes
from tests.drafters.helpers import NO_OUTCOME, check_draft, sequence

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def drafter_with(tokens: list[int], **options: float) -> tuple[PromptLookup, list[int]]:
    drafter, seq = PromptLookup(Options(**{"factor": 9.0, **options})), sequence(tokens)
    drafter.begin(seq, NO_OUTCOME)
    (draft,) = drafter.propose([seq], [64])
    return drafter, list(draft.tokens)


def most_recent(tokens: list[int], shortest: int, longest: int) -> int | None:
    """The oracle: scan for the latest earlier occurrence of the longest run of last tokens."""
    for n in range(min(longest, len(tokens)), shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return end
    return None


def test_copies_what_followed_the_longest_run() -> None:
    _, draft = drafter_with([1, 2, 3, 7, 8, 9, 3, 5, 1, 2, 3], num_draft=3)
    assert draft == [7, 8, 9]  # after 1 2 3, although 3 alone was followed by 5 more recently


def test_the_most_recent_of_equal_runs_wins() -> None:
    _, draft = drafter_with([1, 2, 7, 1, 2, 8, 4, 1, 2], ngram_max=2, num_draft=2)
    assert draft == [8, 4]


def test_a_match_that_reaches_the_end_repeats_its_period() -> None:
    _, draft = drafter_with([9, 1, 2, 3, 1, 2, 3], num_draft=7)
    assert draft == [1, 2, 3, 1, 2, 3, 1]


def test_a_longer_match_is_followed_further() -> None:
    tokens = [9, 5, 6, 7, 1, 2, 3, 4, 8]
    assert drafter_with([*tokens, 7], factor=1.0)[1] == [1]
    assert drafter_with([*tokens, 5, 6, 7], factor=1.0)[1] == [1, 2, 3]
    assert drafter_with([*tokens, 5, 6, 7], factor=1.0, ngram_max=1)[1] == [1, 2, 3]
    assert drafter_with([*tokens, 5, 6, 7], factor=0.5)[1] == [1, 2]
    assert drafter_with([*tokens, 5, 6, 7], factor=1.0, num_draft=2)[1] == [1, 2]


def test_nothing_repeats_nothing_is_guessed() -> None:
    assert drafter_with([1, 2, 3, 4])[1] == []
    assert drafter_with([1])[1] == []
    assert drafter_with([1, 2, 1], ngram_min=2)[1] == []


@given(TEXT, st.integers(1, 3), st.integers(0, 2), st.lists(st.integers(1, 5), max_size=12))
def test_the_incremental_index_equals_a_scan(
    tokens: list[int], shortest: int, more: int, steps: list[int]
) -> None:
    index = NgramIndex(shortest, shortest + more)
    stops = [1]
    for step in steps:
        stops.append(min(len(tokens), stops[-1] + step))
    for stop in [*stops, len(tokens)]:
        index.extend(tokens[:stop])
        expected = most_recent(tokens[:stop], shortest, shortest + more)
        assert index.find(tokens[:stop]) == expected


@given(TEXT, st.integers(0, 9), st.integers(1, 9), st.floats(0.1, 9.0))
def test_drafts_are_chains_within_budget_and_options(
    tokens: list[int], budget: int, num_draft: int, factor: float
) -> None:
    drafter = PromptLookup(Options(num_draft=num_draft, factor=factor))
    seq = sequence(tokens)
    drafter.begin(seq, NO_OUTCOME)
    (draft,) = drafter.propose([seq], [budget])
    check_draft(draft, min(budget, num_draft))


@pytest.mark.parametrize("length", [3, 100, 683, 1366, 3000])
def test_nbytes_is_not_below_what_is_held(length: int) -> None:
    tokens = random.Random(0).sample(range(10**6), length)  # nothing repeats: the most entries
    drafter, seqs = PromptLookup(Options()), [sequence(tokens, i) for i in range(2)]
    for seq in seqs:
        drafter.begin(seq, NO_OUTCOME)
    drafter.propose(seqs, [7] * len(seqs))
    held = held_nbytes(drafter.indexes) - held_nbytes(*tokens)  # the ids belong to the sequence
    assert 0 < held <= drafter.memory(len(seqs), length).total
    assert drafter.memory(0, length).total == 0


def test_the_longer_the_match_the_surer_it_is_and_surer_still_where_it_comes_true() -> None:
    def confidence(tokens: list[int]) -> tuple[float, ...] | None:
        drafter, seq = PromptLookup(Options()), sequence(tokens)
        drafter.begin(seq, NO_OUTCOME)
        return drafter.propose([seq], [64])[0].confidence

    assert confidence([1, 2, 3, 4, 9, 8, 3]) == (1 / 2,)
    assert confidence([1, 2, 3, 4, 9, 8, 1, 2, 3]) == (3 / 4, 4 / 5, 5 / 6)
