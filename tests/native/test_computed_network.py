"""A network whose rows are computed elsewhere: its trees are those of the same logits, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest

from forerun import _native
from forerun.drafters.base.draft_head import Scores
from tests.arrays import normal
from tests.native.models import VOCAB
from tests.native.networks import NOISES, TOKENS, target
from tests.oracles.growth import Solo, grown, native_noises

LOGITS = 2 * normal(VOCAB, VOCAB, seed=3)
"""Of what may follow each token."""


class Rows:
    """Computes the rows of steps, and notes them."""

    def __init__(self, tokens=None, worth=None):
        self.tokens, self.worth, self.seen, self.fails = tokens, worth, [], False

    def __call__(self, rows):
        assert (rows.dtype, rows.shape[1]) == (np.int32, 5)
        self.seen.append(rows.tolist())
        if self.fails:
            raise ValueError("the card is gone")
        logits = LOGITS[rows[:, 3]]
        logits = logits if self.tokens is None else logits[:, self.tokens]
        worth = None if self.worth is None else np.full(len(rows), self.worth)
        return np.ascontiguousarray(logits), worth


def network(rows, model=None, max_depth=4):
    model = model or target()
    made = _native.ComputedNetwork(model.runtime, model.native, max_depth, False, rows)
    if getattr(rows, "tokens", None) is not None:
        made.set_tokens(rows.tokens.tolist())
    made.check()
    return made


def trees(who, noises=NOISES):
    """Of three sequences, of which two sample."""
    solo = Solo([5, 7, 9], [9] * 3, 6, 0.0)
    solo.noises = native_noises(noises)
    return grown(solo.request, [_native.Partner(who, [6] * 3)])[0]


@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_trees_are_those_of_a_partner_with_the_same_logits(tokens):
    def scores(number, steps):
        rows = LOGITS[[step.token for step in steps]]
        return [Scores(row if tokens is None else row[tokens], tokens) for row in rows]

    rows = Rows(tokens)
    found, expected = trees(network(rows, max_depth=16)), trees(scores)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], abs=1e-6)
    assert rows.seen[0] == [[0, 0, -1, 5, 0], [1, 0, -1, 7, 0], [2, 0, -1, 9, 0]]
    assert all(above < number for step in rows.seen[1:] for _, number, above, _, _ in step)


def test_depth_ends_and_probabilities_are_worth_what_is_said():
    whole, half = (
        trees(network(Rows(worth=worth), max_depth=1), [None] * 3) for worth in (None, 0.5)
    )
    for (tokens, parents, chances), (tokens2, _, chances2) in zip(whole, half, strict=True):
        assert tokens == tokens2
        assert {*parents} == {-1}
        assert chances2 == tuple(each / 2 for each in chances)


@pytest.mark.parametrize(
    "rows",
    [
        lambda rows: (LOGITS[: len(rows), :5].copy(), None),
        lambda rows: (LOGITS[:1], None),
        lambda rows: (LOGITS[: len(rows)], np.zeros(1)),
        lambda rows: (LOGITS[: len(rows)].astype(np.float64), None),
    ],
)
def test_other_rows_than_were_asked_for_are_refused(rows):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        trees(network(rows))


def test_an_error_ends_the_draft_and_the_next_one_begins_anew():
    rows, model = Rows(), target()
    made = network(rows, model)
    expected = trees(made)
    rows.fails = True
    with pytest.raises(ValueError, match="the card is gone"):
        trees(made)
    rows.fails = False
    assert trees(made) == expected
