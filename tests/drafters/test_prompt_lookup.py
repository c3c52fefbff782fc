"""The preset of `suffix`: what followed the longest run of last tokens in the same text, within its lengths."""

from __future__ import annotations

import pytest

from forerun.drafters.base.contract import Target
from forerun.drafters.prompt_lookup import Options, build
from tests.drafters.helpers import NO_OUTCOME, sequence
from tests.drafters.models import TARGET

pytest.importorskip("forerun._native")


def drafted(tokens: list[int], target: Target = TARGET, **options: float) -> list[int]:
    drafter, seq = build(Options(**options), target), sequence(tokens)
    drafter.begin(seq, NO_OUTCOME)
    return list(drafter.propose([seq], [64])[0].tokens)


def test_it_copies_what_followed_the_longest_run() -> None:
    tokens = [1, 2, 3, 7, 8, 9, 3, 5, 1, 2, 3]
    assert drafted(tokens) == [
        7,
        8,
        9,
    ]  # after 1 2 3, although 3 alone was followed by 5 more recently
    assert drafted(tokens, num_draft=2) == [7, 8]
    assert drafted(tokens, ngram_max=2) == [7, 8]


def test_a_run_below_the_shortest_is_not_followed() -> None:
    assert drafted([1, 2, 1]) == [2]
    assert drafted([1, 2, 1], ngram_min=2) == []
    assert drafted([1, 2, 3, 1, 2], ngram_min=2) == [3, 1]


def test_it_looks_at_the_same_request_only() -> None:
    drafter = build(Options(), TARGET)
    for seq_id, tokens in enumerate(([1, 2, 3, 4], [1, 2])):
        seq = sequence(tokens, seq_id)
        drafter.begin(seq, NO_OUTCOME)
        assert not len(drafter.propose([seq], [8])[0])
        drafter.end(seq)
