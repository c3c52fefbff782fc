"""Functions of single numbers are near the true ones, and their bits are the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from forerun import _native

EPS = 2.0**-24
Exact = Callable[[np.ndarray], np.ndarray]
FUNCTIONS: dict[str, tuple[Exact, float, float, Callable[[np.ndarray, np.ndarray], np.ndarray], str]] = {
    "exp": (np.exp, -87, 88, lambda x, y: (4 + 1.2 * np.abs(x)) * y, "9fff7c70"),
    "sigmoid": (special.expit, -87, 88, lambda x, y: (6 + 1.2 * np.abs(x)) * y, "3af7c657"),
    "tanh": (np.tanh, -12, 12, lambda x, y: 4 + 0 * x, "982efc2c"),
    "softplus": (lambda x: np.logaddexp(0, x), -87, 88, lambda x, y: (8 + 1.2 * np.abs(x)) * y, "707f9bc5"),
    "log1p": (np.log1p, 0, 1e6, lambda x, y: 5 * y, "8cca8a5f"),
    "cos": (np.cos, 0, 1e5, lambda x, y: 1.2 * np.maximum(np.abs(y), 1e-3), "4c20eaf2"),
    "sin": (np.sin, 0, 1e5, lambda x, y: 1.2 * np.maximum(np.abs(y), 1e-3), "497dfe6c"),
    "gelu": (lambda x: x * special.ndtr(x), -20, 20, lambda x, y: 3.4 * np.abs(x), "b6eac873"),
}  # fmt: skip
"""The true function, where it is looked at, how far off a number may be in units of 2^-24, and the bits' digest."""


def evaluate(function: str, x: np.ndarray, isa: str = "auto") -> np.ndarray:
    out = np.empty(len(x), np.float32)
    _native.evaluate(function, x, out, isa)
    return out


def numbers(low: float, high: float) -> np.ndarray:
    """Evenly spread ones, made of whole numbers, and such of all sizes."""
    even = np.arange(1 << 16, dtype=np.float32) * np.float32((high - low) / (1 << 16)) + np.float32(
        low
    )
    words = np.arange(1 << 15, dtype=np.uint32) * np.uint32(0x1F315) % np.uint32(0x41000000)
    sizes = words.view(np.float32)
    return np.concatenate((even, sizes, -sizes if low < 0 else sizes))  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_are_near_the_true_ones(function: str) -> None:
    exact, low, high, bound, _ = FUNCTIONS[function]
    x = numbers(low, high)
    true = exact(x.astype(np.float64))
    off = np.abs(evaluate(function, x) - true)
    allowed = EPS * bound(x.astype(np.float64), true) + 1e-37
    worst = (off / allowed).argmax()
    assert (off <= allowed).all(), (x[worst], true[worst], off[worst] / allowed[worst])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_are_the_same_on_every_machine(function: str) -> None:
    _, low, high, _, digest = FUNCTIONS[function]
    x = numbers(low, high)
    isas = _native.runnable_isas() if function == "gelu" else ["auto"]
    for isa in isas:
        bits = evaluate(function, x, isa).tobytes()
        assert hashlib.sha256(bits).hexdigest()[:8] == digest, isa


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_not_a_number_stays_so(function: str) -> None:
    x = np.full(16, np.nan, np.float32)
    assert np.isnan(evaluate(function, x)).all()


def test_ends() -> None:
    x = np.tile(np.float32([0.0, -0.0, np.inf, -np.inf]), 4)
    assert np.array_equal(evaluate("gelu", x)[2:3], x[2:3])
    assert np.abs(evaluate("gelu", x)[3]) < 1e-20
    assert evaluate("sigmoid", x)[:4].tolist()[:3] == [0.5, 0.5, 1.0]
    assert np.isnan(evaluate("cos", x)[2:4]).all()
    assert np.abs(evaluate("cos", np.float32([1e30, 3e38]))).max() <= 1


def test_other_functions_and_sizes_are_refused() -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="unknown function 'cbrt'"):
        _native.evaluate("cbrt", x, x)
    with pytest.raises(ValueError, match="16 numbers at a time"):
        _native.evaluate("gelu", x, x)
    with pytest.raises(ValueError, match="as many numbers in as out"):
        _native.evaluate("exp", x, np.zeros(9, np.float32))
