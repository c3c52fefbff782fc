"""What partners are worth is learned from the tokens that came: their shares, and from which doubt they are asked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.base.draft_head import Scores

_native = pytest.importorskip("forerun._native")

VOCAB = 12


def softmax(logits):
    exps = np.exp(logits.astype(np.float64) - logits.max())
    return exps / exps.sum()


@dataclass
class Guesser:
    """Says the same after all that ends in one token."""

    rows: np.ndarray

    def __call__(self, number, steps):
        return [Scores(self.rows[step.token % 3]) for step in steps]


def judged(words, tree, tokens):
    """What `judge` says, in Python: `words` are partner, place, doubt, best before, best, before, own."""
    (nodes, parents, _), places = tree, [0]
    for token in tokens:
        below = [i for i, node in enumerate(nodes) if (parents[i] + 1, node) == (places[-1], token)]
        if not below:
            break
        places.append(below[0] + 1)
    coming = dict(zip(places, tokens, strict=False))
    turned = sorted(places.index(w[1]) for w in words if coming.get(w[1], -1) == w[4] != w[3])
    ends = dict(itertools.pairwise([*turned, len(places) - 1]))
    verdicts = []
    for partner, place, doubt, best_before, best, before, own in words:
        token, brought = coming.get(place), 0
        if token is not None and token == best != best_before:
            depth = places.index(place)
            brought = ends[depth] - depth
        verdicts.append((partner, doubt, before.get(token, 0.0), own.get(token, 0.0), brought))
    return verdicts


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    st.integers(1, 8),
)
def test_steps_are_judged_by_the_tokens_that_came(seed, tokens, num_nodes):
    """Two partners over a node each: the second's words are judged, since somebody spoke before."""
    share, random = 0.6, np.random.default_rng(seed)
    first, second = 2 * random.standard_normal((2, 3, VOCAB), np.float32)
    partners = [
        _native.Partner(Guesser(rows), [8], 0.0, share, 1.0, True) for rows in (first, second)
    ]
    (tree,), taken, (said,) = _native.grow(partners, [0], [num_nodes], 0.0)
    nodes, parents, chances = tree
    reached, words = [1.0], []
    for parent, chance in zip(parents, chances, strict=True):
        reached.append(reached[parent + 1] * chance)
    assert [sum(each) for each in taken] == [taken[1][0]] * 2
    for place in range(taken[1][0]):
        row = (0, *nodes)[place] % 3
        before, own = softmax(first[row]), softmax(second[row])
        likeliest = [
            dict.fromkeys(np.argsort(-p, kind="stable")[:8].tolist()) for p in (before, own)
        ]
        known = {token: before[token] for token in likeliest[0]}
        said_own = {token: own[token] for token in likeliest[1]}
        mean = {
            t: (1 - share) * known.get(t, 0) + share * said_own.get(t, 0) for t in known | said_own
        }
        best = [max(each, key=each.get) for each in (known, mean)]
        doubt = reached[place] * (1 - max(known.values()))
        words.append((1, place, doubt, *best, known, said_own))
    found, wanted = said.judged(tokens), judged(words, tree, tokens)
    assert [each[0] for each in found] == [each[0] for each in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours[1:4] == pytest.approx(theirs[1:4], abs=1e-4)
    assert [each[4] for each in found] == [each[4] for each in wanted]


def test_the_share_is_what_makes_the_tokens_likeliest():
    """Of tokens drawn from a mixture, the weight with which they were drawn."""
    generator = np.random.default_rng(4)
    for drawn, begun in ((0.2, 0.9), (0.8, 0.1)):
        worth, found = _native.PartnerValue(begun, 1.0), []
        for _ in range(600):
            before, own = generator.dirichlet([0.3] * 6, 2)
            token = generator.choice(6, p=drawn * own + (1 - drawn) * before)
            worth.learn([(0, 0.5, before[token], own[token], 0)])
            found.append(worth.share)
        assert np.mean(found[200:]) == pytest.approx(drawn, abs=0.1)


@pytest.mark.parametrize("gain", [0.3, 1.2])
def test_a_partner_is_asked_where_its_steps_bring_what_they_cost(gain):
    generator, worth = np.random.default_rng(4), _native.PartnerValue(0.5, 0.7)
    for _ in range(400):
        doubt = generator.uniform(0.2, 1)
        worth.learn([(0, doubt, 0.1, 0.1, 2 * (generator.random() < gain * doubt**2 / 2))])
    doubt = worth.doubt(0.05, cost=0.1)
    assert gain * doubt**2 == pytest.approx(0.1, rel=0.3)
    assert worth.doubt(0.6, cost=0.1) == 0.6, "never from less on than it was told"


def test_one_that_brings_nothing_is_asked_where_all_others_doubt():
    worth = _native.PartnerValue(0.5, 1.0)
    assert worth.doubt(0.2) == pytest.approx(0.2)
    for _ in range(2000):
        worth.learn([(0, 0.5, 0.1, 0.0, 0)])
    assert worth.doubt(0.2) == _native.PartnerValue.MOST_DOUBT
    assert worth.share < 0.1
