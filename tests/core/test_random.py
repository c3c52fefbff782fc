"""Random numbers belong to a place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from forerun.core.random import Stream, uniform

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.sampled_from(Stream), st.integers(0, 2**31), st.integers(0, 1000))
def test_a_place_has_one_number_in_the_unit_interval(seed, stream, position, index):
    value = uniform(seed, stream, position, index)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, stream, position, index)


def test_every_coordinate_matters():
    grid = {
        uniform(seed, stream, position, index)
        for seed in range(4)
        for stream in Stream
        for position in range(8)
        for index in range(4)
    }
    assert len(grid) == 4 * 3 * 8 * 4


def test_numbers_along_positions_seeds_and_indices_are_uniform():
    """Kolmogorov-Smirnov on three walks; false alarm rate 1e-6 each, the seed is fixed."""
    walks = (
        [uniform(7, Stream.TARGET, p) for p in range(4000)],
        [uniform(s, Stream.ACCEPT, 3) for s in range(4000)],
        [uniform(7, Stream.DRAFT, 3, i) for i in range(4000)],
    )
    for walk in walks:
        assert stats.kstest(walk, "uniform").pvalue > 1e-6
        assert abs(np.corrcoef(walk[:-1], walk[1:])[0, 1]) < 0.1
