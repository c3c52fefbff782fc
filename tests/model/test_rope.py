"""The frequencies of rotary positions."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.model.config import RopeConfig

THETAS = (100.0, 10_000.0, 500_000.0, 1e6, 1e7)
DIMS = (8, 32, 64, 80, 128, 256)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("dim", DIMS)
def test_frequencies_are_those_that_models_are_trained_with(theta: float, dim: int) -> None:
    """Within the last bit of what transformers computes; torch's power is not rounded alike on all machines."""
    torch = pytest.importorskip("torch")
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    theirs = 1.0 / theta**exponents
    ours = RopeConfig(theta, dim).inverse_frequencies()
    assert ours.dtype == np.float32
    np.testing.assert_array_max_ulp(ours, theirs.numpy(), maxulp=1)


@pytest.mark.parametrize("theta", THETAS)
def test_frequencies_are_near_the_exact_ones(theta: float) -> None:
    """A rounding each of exponent, power and quotient; the exponent's counts ln(theta) times."""
    exact = theta ** -(np.arange(0, 128, 2) / 128)
    ours = RopeConfig(theta, 128).inverse_frequencies()
    np.testing.assert_allclose(ours, exact, rtol=2.0**-24 * (2 + np.log(theta)))


def test_factors_divide_them() -> None:
    factors = (1.0, 2.0, 3.0, 8.0)
    plain = RopeConfig(10_000.0, 8).inverse_frequencies()
    scaled = RopeConfig(10_000.0, 8, factors).inverse_frequencies()
    assert np.array_equal(scaled, plain / np.float32(factors))
