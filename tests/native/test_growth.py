"""Trees of steps that Python computes: node for node the oracle's, and a step that fails ends the draft alone."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.core.types import Seq
from forerun.drafters.base.draft_head import Scores
from forerun.drafters.base.networks.network import Network
from forerun.drafters.base.networks.options import NetworkOptions
from tests.native import ngrams
from tests.oracles.growth import (
    Asked,
    DraftRequest,
    Step,
    TreeNoise,
    grow,
    grown,
    likeliest,
    native_noises,
)

_native = pytest.importorskip("forerun._native")


class RandomNetwork:
    """Says something of its own after every path; of some tokens alone, where it has a list."""

    def __init__(self, seed: int, vocab_size: int, listed: bool, odd: float | None) -> None:
        self.seed, self.vocab_size, self.listed, self.odd = seed, vocab_size, listed, odd
        self.paths: dict[tuple[int, int], tuple[int, ...]] = {}
        """By sequence and step: the tokens up to it."""

    def __call__(self, number: int, step) -> Scores:
        above = self.paths.get((step.sequence, step.parent), ())
        path = self.paths[step.sequence, number] = (*above, *step.path)
        assert len(path) == step.depth
        assert not path or path[-1] == step.token
        rng = np.random.default_rng([self.seed, step.sequence, *path])
        logits = 3 * rng.normal(size=self.vocab_size).astype(np.float32)
        if self.odd is not None and rng.random() < 0.5:
            logits[rng.integers(self.vocab_size, size=3)] = self.odd
        if not self.listed:
            return Scores(logits)
        tokens = np.sort(rng.choice(10 * self.vocab_size, self.vocab_size, replace=False))
        return Scores(logits, tokens, 10 * self.vocab_size)

    def take(self, number: int, steps) -> list[Scores]:
        """Answer one step a sequence."""
        return [self(number, step) for step in steps]


NOISES = st.none() | st.builds(
    TreeNoise,
    st.builds(Noise, st.integers(0, 2**63 - 1), st.integers(0, 9)),
    st.integers(0, 10_000),
    st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    st.sampled_from([1.0, 0.93, 0.5]),  # no sum of shares: rounding would decide what is within it
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.5, 1.25]),
)


PARTNERS = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 5, 16, 31, 200]),
    st.booleans(),
    st.sampled_from([None, -np.inf, np.nan, np.inf]),
    st.lists(st.integers(0, 16), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.05, 0.2, 0.6]),
    st.sampled_from([0.55, 0.9]),
    st.booleans(),
    st.sampled_from([0.5, 1.0]),
)
"""Seed, vocabulary, whether it has a list, odd logits, steps, doubt, share, whether it knows paths, temperature."""


@given(
    st.lists(PARTNERS, min_size=1, max_size=3),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.booleans(),
    st.lists(NOISES, min_size=3, max_size=3),
)
def test_the_trees_are_those_of_their_oracle(drawn, num_nodes, least, has_tables, noises):
    last = [text[-1] for text in ngrams.TEXTS]
    tables = ngrams.native() if has_tables else None
    request = DraftRequest(last, num_nodes, least, tables, native_noises(noises))
    partners, asked = [], []
    for *kind, num_steps, doubt, share, knows_paths, temperature in drawn:
        take, oracle = RandomNetwork(*kind).take, RandomNetwork(*kind)
        partners.append(_native.Partner(take, num_steps, doubt, share, temperature, knows_paths))

        def guess(number, step, network=oracle, temperature=temperature):
            scores, noise = network(number, step), noises[step.sequence]
            chosen = (temperature if noise is None else 1.0,)
            return likeliest(scores.logits, step, scores.tokens, chosen, noise)

        asked.append(Asked(guess, num_steps, doubt, share, knows_paths=knows_paths))
    trees, taken, _ = grown(request, partners)
    request.noises, request.ngrams = noises, tables and ngrams.oracle()
    for tree, expected in zip(trees, grow(request, asked), strict=True):
        assert tree[:2] == expected[:2]
        assert tree[2] == pytest.approx(expected[2], rel=1e-4)
    assert all(n <= most for each, kind in zip(taken, drawn) for n, most in zip(each, kind[4]))


def test_a_dear_partner_is_asked_only_where_the_cheap_one_doubts():
    """The first says token 1 for sure, after three of them nothing: only then the second is asked, over the path."""
    seen = []

    def sure(number, steps):
        logits = np.zeros(4, np.float32)
        logits[1] = 30.0 if steps[0].depth < 3 else 0.0
        return [Scores(logits)]

    def dear(number, steps):
        seen.extend((step.parent, step.depth, [*step.path]) for step in steps)
        return [Scores(np.array([0, 0, 30, 0], np.float32))]

    partners = [
        _native.Partner(sure, [8], 0.0, 0.55),
        _native.Partner(dear, [8], 0.05, 0.9, 1.0, True),
    ]
    trees, taken, _ = grown(DraftRequest([0], [5], 0.01), partners)
    assert trees[0][0] == (1, 1, 1, 2, 2)
    assert seen == [(-1, 3, [1, 1, 1]), (0, 4, [2])]
    assert taken == [[5], [2]]


REQUEST = DraftRequest([1, 2], [9, 9], 0.0)


def steps_of(take, request=REQUEST, most=4):
    """Grow trees with one partner that Python computes."""
    return grown(request, [_native.Partner(take, [most] * len(request.tokens))])[0]


def test_a_sequence_gets_the_same_tree_alone_in_company_and_from_two_threads():
    def trees(sequence):
        network = RandomNetwork(7, 50, False, None)
        alone = DraftRequest([REQUEST.tokens[sequence]], [9], 0.0)

        def take(number, steps):
            moved = [Step(sequence, s.parent, s.token, s.depth, s.path) for s in steps]
            return network.take(number, moved)

        return steps_of(take, alone)[0]

    together = steps_of(RandomNetwork(7, 50, False, None).take)
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(trees, [0, 1] * 20)] == together * 20


def test_a_step_that_fails_ends_the_draft_with_its_error_and_nothing_is_held():
    arrays, error = [], ZeroDivisionError("at step 2")

    def take(number, steps):
        if number == 2:
            raise error
        rows = RandomNetwork(number, 50, True, None).take(
            0, [Step(s.sequence, -1, s.token, 0, ()) for s in steps]
        )
        arrays.extend(weakref.ref(each) for row in rows for each in (row.logits, row.tokens))
        return rows

    counts = sys.getrefcount(take)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            steps_of(take)
        assert caught.value is error
        del caught
        error.__traceback__ = None
    assert len(arrays) == 3 * 2 * 2 * 2
    assert not any(ref() is not None for ref in arrays)
    assert sys.getrefcount(take) == counts


def test_what_a_step_gives_is_checked():
    row = np.zeros(5, np.float32)
    for rows, message in (
        ([Scores(row)], "a row of logits is needed for every step"),
        ([Scores(row, np.arange(4))] * 2, "as many tokens as logits"),
    ):
        with pytest.raises(ValueError, match=message):
            steps_of(lambda number, steps, rows=rows: rows)
    with pytest.raises(ValueError, match="steps must be 0 to 16"):
        steps_of(lambda number, steps: [], most=17)
    with pytest.raises(ValueError, match="a number of nodes is needed"):
        steps_of(lambda number, steps: [], DraftRequest([1, 2], [1], 0.0))


class Failing(Network):
    """Fails where it is told to."""

    fails = True

    def new_draft(self, seqs, num_nodes):
        """Fail at the first step, or say something."""
        if self.fails:
            return lambda number, steps: [1 / 0 for _ in steps]
        return RandomNetwork(1, 50, False, None).take


def test_a_drafter_goes_on_after_a_draft_that_failed():
    drafter = Failing(NetworkOptions(model="", min_chance=0))
    seq = Seq(0, [1, 2], SamplingParams(temperature=0), 0)
    with pytest.raises(ZeroDivisionError):
        drafter.propose([seq], [5])
    drafter.fails = False
    assert len(drafter.propose([seq], [5])[0]) == 5


def test_without_the_native_library_a_network_is_refused(monkeypatch):
    monkeypatch.setattr("forerun.model.kernels.native.native_problem", lambda: "not built")
    with pytest.raises(LoadError, match="none and lookahead draft without them"):
        Failing(NetworkOptions(model=""))
