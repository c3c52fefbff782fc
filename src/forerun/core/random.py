"""The sampler's noise: a function of (seed, stream, position, token), so that a seed fixes the text.

The target takes argmax_x (l_x + g_x) over its processed logits l, with g_x = -log(-log u_x) Gumbel noise and u_x in
(0, 1): an exact draw from softmax(l). No draft enters it, so the same seed gives the same text whatever drafts, with
whom it shares a batch, and whether it drafts at all. A drafter may read the same noise to guess better.

    key = mix64(mix64(mix64(seed + C) + C (position + 1)) + C (stream + 1)),  C = 0x9E3779B97F4A7C15
    h   = mix32(mix32(token 0x9E3779B9 + low(key)) + high(key)),  m = the low 31 bits of h,  v = (m + 1/2) / 2^32
    u   = 1 - v where the top bit of h is 0, else v
    g   = -log(-log u), single precision; logarithms by one series of arctanh

This is version 1 of the draw; every operation rounds as IEEE 754 says, so `csrc/kernels/noise.h` gives equal bits on
every instruction set. mix64 is the finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import RequestError
from forerun.core.native import native_problem

VERSION = 1
"""Of the draw: another one gives other texts for the same seeds."""
_WEYL = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_LN2, _SQRT_HALF = np.float32(0.6931472), np.int32(0x3F3504F3)
_ARCTANH = tuple(np.float32(1) / np.float32(n) for n in (13, 11, 9, 7, 5, 3))


def no_token() -> RequestError:
    """Say that the logits name no token."""
    return RequestError(
        "no token can be chosen: the model's logits are not finite, or every token is banned"
    )


class Noise:
    """One sequence's noise."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        """`stream` tells apart sequences of one seed: the i-th of `n` completions takes stream i."""
        self.state = _mix64(seed + _WEYL), _WEYL * (stream + 1) & _WORD
        """What `key` is made of besides the position, two words of 64 bits: for native code."""

    def key(self, position: int) -> int:
        """Return what the noise of all tokens at a position of the sequence depends on, 64 bits."""
        seed, stream = self.state
        return _mix64(_mix64(seed + _WEYL * (position + 1)) + stream)

    def of(self, position: int, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return g (n,) of tokens (n,) at a position."""
        key = self.key(position)
        if native_problem() is not None:
            return gumbel(key, tokens)
        from forerun import _native

        noise = np.empty(len(tokens), np.float32)
        _native.gumbel(key, np.ascontiguousarray(tokens, np.int32), noise)
        return noise

    def draw(self, position: int, logits: NDArray[np.float32], factor: float) -> int:
        """Draw a token of softmax(factor logits), logits (V,): the lowest id among equal scores.

        Raises RequestError for logits that are not numbers below infinity, or all minus infinity.
        """
        key = self.key(position)
        if native_problem() is not None:
            scores = logits * np.float32(factor) + gumbel(key, np.arange(len(logits)))
            token = int(scores.argmax()) if -np.inf < scores.max() < np.inf else -1
        else:
            from forerun import _native

            token = _native.draw(np.ascontiguousarray(logits), factor, key)
        if token < 0:
            raise no_token()
        return token


def gumbel(key: int, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return Gumbel noise (n,) of tokens (n,); the reference of the native kernel."""
    h = _mix32(tokens.astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key & 0xFFFFFFFF))
    h = _mix32(h + np.uint32(key >> 32))
    is_small = h < 1 << 31
    v = ((h & np.uint32(0x7FFFFFFF)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    above, below, exponent = _parts(v)
    # -log(1 - v) = 2 arctanh(v / (2 - v)), -log v = -exponent log 2 + 2 arctanh(-above / below)
    zero = np.zeros_like(v)
    z = np.where(is_small, v, -above).astype(np.float32)
    z /= np.where(is_small, np.float32(2) - v, below).astype(np.float32)
    exponential = np.where(is_small, zero, -exponent * _LN2) + _double_arctanh(z)
    above, below, exponent = _parts(exponential)
    noise: NDArray[np.float32] = -exponent * _LN2 + _double_arctanh(-above / below)
    return noise


def _parts(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    """Split x = 2^e m, sqrt(1/2) <= m < sqrt(2), into m - 1, m + 1 and e; log m = 2 arctanh((m - 1) / (m + 1))."""
    bits = x.view(np.int32)
    exponent = (bits - _SQRT_HALF) >> 23
    mantissa = (bits - (exponent << 23)).view(np.float32)
    return mantissa - np.float32(1), mantissa + np.float32(1), exponent.astype(np.float32)


def _double_arctanh(z: NDArray[np.float32]) -> NDArray[np.float32]:
    square = z * z
    series = square * _ARCTANH[0] + _ARCTANH[1]
    for coefficient in _ARCTANH[2:]:
        series = series * square + coefficient
    doubled = z + z
    doubled_arctanh: NDArray[np.float32] = doubled * square * series + doubled
    return doubled_arctanh


def _mix64(x: int) -> int:
    x &= _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def _mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The finaliser of MurmurHash3, by Appleby: every bit of the input changes every bit of the result."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
