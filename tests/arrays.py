"""What tests ask of arrays: NumPy's, which the engine takes and gives, or the tensors of an oracle."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forerun.core.arrays import Floats


def normal(*shape: int, seed: int = 0) -> Floats:
    """Random numbers of deviation 1, fp32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def same_bits(a: ArrayLike, b: ArrayLike) -> bool:
    """Equal to the last bit, NaN included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_close(
    actual: ArrayLike, expected: ArrayLike, rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """Near each other; NaN is where NaN is."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)


def cosine(a: ArrayLike, b: ArrayLike) -> Floats:
    """Cosines (...) of the angles between rows (..., N)."""
    a, b = np.asarray(a), np.asarray(b)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / lengths
