"""Trees of a model that is run step by step: within their limits, ordered, and under the request's parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.decoding.processors import LogitsPipeline
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
from tests.oracles.growth import softmax


@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 9),
    st.sampled_from([GREEDY, WARM]),
    st.floats(0, 0.5),
)
@settings(max_examples=40)
def test_drafts_are_trees_within_budget_and_options(
    num_steps: int, num_draft: int, budget: int, params: SamplingParams, min_chance: float
) -> None:
    drafter = drafter_of(num_steps=num_steps, num_draft=num_draft, min_chance=min_chance)
    (seq,) = begun(drafter, seq_of([1, 2], params=params))
    (draft,) = drafter.propose([seq], [budget])
    check_draft(draft, min(budget, num_draft))
    assert len({*draft.parents}) <= num_steps, "a step expands one node"
    reached = tree.path_products(draft.parents, draft.confidence or ())
    assert reached == sorted(reached, reverse=True)
    assert all(p >= min_chance for p in reached)


def test_its_own_probabilities_are_its_confidence() -> None:
    """Sharpened: a draft is right more often than it says."""
    drafter = drafter_of(num_draft=9)
    (seq,) = begun(drafter, seq_of([1, 2]))
    (draft,) = drafter.propose([seq], [20])
    assert len({*draft.parents}) > 2
    for node, confidence in enumerate(draft.confidence):
        above = tree.path_to(node, draft.parents)[:-1]
        row = logits_of(DRAFT_MODEL, [*seq.tokens, *(draft.tokens[i] for i in above)])
        expected = float(softmax(2 * row)[draft.tokens[node]])
        assert confidence == pytest.approx(expected, rel=1e-5)


def test_a_sampled_draft_has_the_largest_scores() -> None:
    """Of logits under the request's parameters, with the noise of the place where the target will draw."""
    params = SamplingParams(temperature=0.9, repetition_penalty=1.3)
    drafter = drafter_of(num_draft=9)
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=params))
    (draft,) = drafter.propose([seq], [20])
    below = tree.children(draft.parents)
    assert len(below) > 2
    for parent, children in below.items():
        guessed = [draft.tokens[i] for i in tree.path_to(parent, draft.parents)]
        row = logits_of(DRAFT_MODEL, seq.tokens + guessed)
        logits = LogitsPipeline(params, seq.tokens).adjusted(row, guessed) / params.temperature
        noise = seq.noise.of(len(seq.tokens) + len(guessed), np.arange(VOCAB_SIZE))
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
    node = draft.parents.index(0)
    expected = logits_of(DRAFT_MODEL, [1, 2, draft.tokens[0]]).copy()
    expected[draft.tokens[0]] -= 2.0
    assert draft.tokens[node] == int(expected.argmax())
