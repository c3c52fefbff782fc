"""The kernel of recurrent networks: the state after a token, of its gates and its embedding.

R rows of a step, p inner width of G gates, E width of what a token adds: p, or G p.
"""

import triton
import triton.language as tl

from forerun.gpu.numbers import gelu, moments, rint, sigmoid


@triton.jit
def _add_token(
    gates, embedded, is_rounded, token_weight, i, P: tl.constexpr, G: tl.constexpr, E: tl.constexpr
):
    """Add an embedding (E,) times its weight to gates (G p,); rounded to int8 with one scale where that is kept."""
    largest = 0.0
    for part in tl.static_range(E // P):
        values = tl.load(embedded + part * P + i, i < P, 0.0)
        largest = tl.maximum(largest, tl.max(tl.abs(values), 0))
    scale = tl.div_rn(largest, 127.0)
    divisor = tl.where(scale > 0.0, scale, 1.0)
    for gate in tl.static_range(G):
        at = gates + gate * P + i
        e = tl.load(embedded + gate * P % E + i, i < P, 0.0)
        code = tl.where(scale > 0.0, rint(tl.div_rn(e, divisor)), 0.0)
        e = tl.where(is_rounded, scale * code, e)
        tl.store(at, tl.load(at, i < P, 0.0) + token_weight * e, i < P)


@triton.jit
def _normed(x, weight, bias, eps, i, P: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return the gelu of the norm of numbers at x (p,), which were just written."""
    tl.debug_barrier()
    mean, factor = moments(x, eps, P, False)
    y = (tl.load(x + i, i < P, 0.0) - mean) * factor
    scale = tl.load(weight + i, i < P, 0.0)
    y = tl.fma(y, scale, tl.load(bias + i, i < P, 0.0)) if HAS_BIAS else y * scale
    return gelu(y)


@triton.jit
def advance(
    gates, embedded, places, R, token_weight, weight, bias, state_weight, state_bias, eps, states, out,
    P: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, HAS_BIAS: tl.constexpr,
    STATE_HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Make states of gates (R, G p) and embeddings (R, E): in states (steps, 2, p), and out (R, p). Grid (R,).

    places (3, R): where a row's state and cell go, where those before it are (-1: nowhere), whether e is rounded.
    """
    row, i = tl.program_id(0), tl.arange(0, WIDE)
    own = gates + row * G * P
    is_rounded = tl.load(places + 2 * R + row) != 0
    _add_token(own, embedded + row * E, is_rounded, token_weight, i, P, G, E)
    state = states + tl.load(places + row) * 2 * P
    if G == 1:
        s = _normed(own, weight, bias, eps, i, P, HAS_BIAS)
    else:
        candidate = _normed(own + 3 * P, weight, bias, eps, i, P, HAS_BIAS)
        c = candidate * sigmoid(tl.load(own + P + i, i < P, 0.0))
        above = tl.load(places + R + row)
        before = tl.load(states + (tl.maximum(above, 0) * 2 + 1) * P + i, i < P, 0.0)
        kept = before * sigmoid(tl.load(own + i, i < P, 0.0))
        c = tl.where(above >= 0, c + kept, c)
        tl.store(state + P + i, c, i < P)
        s = _normed(state + P, state_weight, state_bias, eps, i, P, STATE_HAS_BIAS)
        s = s * sigmoid(tl.load(own + 2 * P + i, i < P, 0.0))
    tl.store(state + i, s, i < P)
    tl.store(out + row * P + i, s, i < P)
