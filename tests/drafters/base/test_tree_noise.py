"""What a tree knows of the sampler's choice: better guesses where the noise counts, none that a filter leaves out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.core.types import Seq
from forerun.drafters.base.tree_noise import noise_below
from tests.oracles.growth import TreeNoise

CHANCES = st.dictionaries(st.integers(0, 50), st.floats(1e-6, 0.2), min_size=1, max_size=5)


@given(CHANCES, st.integers(0, 2**63 - 1), st.sampled_from([1e-5, 0.5, 1.0, 3.0]))
def test_chances_stay_chances(chances, seed, temperature):
    seen = TreeNoise(Noise(seed), 3, temperature).native().see(2, chances)
    assert seen.keys() == chances.keys()
    assert all(0 <= p <= 1 for p in seen.values())
    assert sum(seen.values()) <= 1 + 1e-9


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_first_guess_is_right_more_often(temperature):
    """Where the guesser's law is the target's own: as often as the target's choice is among the tokens it knows."""
    logits = np.log(np.array([0.3, 0.25, 0.2, 0.1, 0.05, 0.05, 0.05], np.float32))
    tokens = np.arange(len(logits), dtype=np.int32)
    known = {int(token): float(np.exp(logits[token])) for token in tokens[:4]}
    right = blind = among = 0
    for seed in range(2000):
        noise = Noise(seed)
        choice = noise.draw(9, logits, 1 / temperature)
        seen = TreeNoise(noise, 7, temperature).native().see(2, known)
        right += choice == max(seen, key=seen.__getitem__)
        blind += choice == 0
        among += choice in known
    assert right == among > 1.5 * blind


def test_nodes_of_larger_chances_are_right_more_often():
    """Of many drafts by a law that is near the target's, in quarters by the chance of the first node."""
    rng, judged = np.random.default_rng(0), []
    for seed in range(2000):
        noise, logits = Noise(seed), rng.normal(size=30).astype(np.float32) * 2
        guesser = logits + rng.normal(size=30) * 0.7
        law = np.exp(guesser) / np.exp(guesser).sum()
        known = {int(i): float(law[i]) for i in np.argsort(-law)[:8]}
        seen = TreeNoise(noise, 4).native().see(0, known)
        best = max(seen, key=seen.__getitem__)
        judged.append((seen[best], noise.draw(4, logits, 1.0) == best))
    quarters = np.array(sorted(judged))[:, 1].reshape(4, -1).mean(1)
    assert (np.diff(quarters) > 0.05).all()


def test_tokens_that_the_filters_leave_out_are_not_guessed():
    probabilities = {7: 0.5, 3: 0.3, 9: 0.15, 4: 0.05}
    assert {*TreeNoise(Noise(1), 0, top_p=0.7).native().see(0, probabilities)} == {7, 3}
    assert {*TreeNoise(Noise(1), 0, top_k=3).native().see(0, probabilities)} == {7, 3, 9}
    assert {*TreeNoise(Noise(1), 0, min_p=0.2).native().see(0, probabilities)} == {7, 3, 9}
    assert {*TreeNoise(Noise(1), 0, top_p=0.999).native().see(0, probabilities)} == {7, 3, 9, 4}


@pytest.mark.parametrize(
    ("filters", "kept"),
    [({"top_k": 1}, 1), ({"top_k": 3}, 3), ({"top_p": 0.3}, 2), ({"min_p": 1.0}, 4)],
)
def test_of_equal_guesses_as_many_stay_as_the_filters_leave(filters, kept):
    """As of the target's logits, of which the sampler keeps so many."""
    probabilities = dict.fromkeys((7, 3, 9, 4), 0.25)
    assert len(TreeNoise(Noise(1), 0, **filters).native().see(0, probabilities)) == kept


def test_a_greedy_request_has_no_noise():
    assert noise_below(Seq(0, [1, 2], SamplingParams(temperature=0), 5)) is None
    seq = Seq(0, [1, 2], SamplingParams(temperature=0.5, top_p=0.9, top_k=-1), 5, stream=2)
    noise = noise_below(seq)
    assert noise is not None
    chances = {3: 0.6, 4: 0.3, 9: 0.05}
    assert noise.see(1, chances) == TreeNoise(Noise(5, 2), 2, 0.5, 0.9).see(1, chances)
