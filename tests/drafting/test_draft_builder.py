"""Chains and trees that a model guesses: their shape and their tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.decoding.processors import LogitsPipeline
from forerun.drafting.best_first import largest, softmax
from tests.drafters.helpers import GREEDY, check_draft
from tests.drafters.models import (
    DRAFT_MODEL,
    VOCAB_SIZE,
    WARM,
    begun,
    drafter_of,
    logits_of,
    seq_of,
)


@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 4),
    st.integers(0, 9),
    st.sampled_from([GREEDY, WARM]),
    st.floats(0, 0.5),
)
@settings(max_examples=40)
def test_drafts_are_trees_within_budget_and_options(
    branch: list[int], num_draft: int, budget: int, params: SamplingParams, confidence: float
) -> None:
    drafter = drafter_of(branch=tuple(branch), num_draft=num_draft, min_confidence=confidence)
    (seq,) = begun(drafter, seq_of([1, 2], params=params))
    (draft,) = drafter.propose([seq], [budget])
    check_draft(draft, budget)
    widths = branch or [1] * num_draft
    for node, children in tree.children(draft.parents).items():
        depth = 0 if node < 0 else tree.depths(draft.parents)[node] + 1
        assert len(children) <= widths[depth]


def test_a_tree_has_the_likeliest_tokens() -> None:
    drafter = drafter_of(branch=(3, 2))
    (seq,) = begun(drafter, seq_of([1, 2]))
    (draft,) = drafter.propose([seq], [20])
    assert tree.children(draft.parents) == {-1: [0, 1, 2], 0: [3, 4], 1: [5, 6], 2: [7, 8]}
    best = largest(logits_of(DRAFT_MODEL, seq.tokens), 3).tolist()
    assert list(draft.tokens[:3]) == best
    below = largest(logits_of(DRAFT_MODEL, [*seq.tokens, best[1]]), 2).tolist()
    assert list(draft.tokens[5:7]) == below


def test_its_own_chances_are_its_confidence() -> None:
    drafter = drafter_of(branch=(3, 2))
    (seq,) = begun(drafter, seq_of([1, 2]))
    (draft,) = drafter.propose([seq], [20])
    for node, confidence in enumerate(draft.confidence):
        above = tree.path_to(node, draft.parents)[:-1]
        row = logits_of(DRAFT_MODEL, [*seq.tokens, *(draft.tokens[i] for i in above)])
        expected = float(softmax(row)[draft.tokens[node]])
        assert confidence == pytest.approx(expected, rel=1e-5)
    drafter.end(seq)
    (seq,) = begun(drafter, seq_of([1, 2], params=WARM))
    (draft,) = drafter.propose([seq], [20])
    assert len(draft.confidence) == len(draft) > 0
    assert all(0 < confidence <= 1 for confidence in draft.confidence)


def test_a_sampled_draft_has_the_largest_scores() -> None:
    """Of logits under the request's parameters, with the noise of the place where the target will draw."""
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3)
    drafter = drafter_of(branch=(3, 2))
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=params))
    (draft,) = drafter.propose([seq], [20])
    for parent, children in tree.children(draft.parents).items():
        said = [draft.tokens[i] for i in tree.path_to(parent, draft.parents)]
        row = logits_of(DRAFT_MODEL, seq.tokens + said)
        logits = LogitsPipeline(params, seq.tokens).adjusted(row, said) / params.temperature
        noise = seq.noise.of(len(seq.tokens) + len(said), np.arange(VOCAB_SIZE))
        best = np.argsort(-(logits + noise))[: len(children)]
        assert [draft.tokens[child] for child in children] == best.tolist()


def test_greedy_drafts_follow_bias_and_penalties() -> None:
    biased = replace(GREEDY, logit_bias={7: 100.0})
    drafter = drafter_of(num_draft=3)
    (seq,) = begun(drafter, seq_of([1, 2], params=biased))
    assert drafter.propose([seq], [8])[0].tokens == (7, 7, 7)
    drafter.end(seq)
    (seq,) = begun(drafter, seq_of([1, 2], params=replace(GREEDY, presence_penalty=2.0)))
    (draft,) = drafter.propose([seq], [8])
    expected = logits_of(DRAFT_MODEL, [1, 2, draft.tokens[0]]).copy()
    expected[draft.tokens[0]] -= 2.0
    assert draft.tokens[1] == int(expected.argmax())


def test_nothing_is_guessed_below_a_token_without_confidence() -> None:
    drafter = drafter_of(num_draft=6, min_confidence=0.5)
    lengths = set()
    for i in range(40):
        (seq,) = begun(drafter, seq_of([i % VOCAB_SIZE, i // VOCAB_SIZE]))
        (draft,) = drafter.propose([seq], [8])
        drafter.end(seq)
        contexts = [[*seq.tokens, *draft.tokens[:j]] for j in range(len(draft))]
        confident = [softmax(logits_of(DRAFT_MODEL, c)).max() >= 0.5 for c in contexts]
        assert all(confident[:-1])
        assert len(draft) == 6 or not confident[-1]
        lengths.add(len(draft))
    assert len(lengths) > 1
