"""The kernels of rows of logits: their caps, the largest of them, and of those with the sampler's noise.

R rows, V vocabulary.
"""

import triton
import triton.language as tl

from forerun.gpu.numbers import cap, exp, gumbel, sum16

_NONE = tl.constexpr(-(1 << 31))
"""Below all that are chosen from."""


@triton.jit
def finish_logits(
    logits, inverse, twice, once, divisor, V, HAS_CAP: tl.constexpr, HAS_DIVISOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Cap and divide logits (R, V) in place. Grid (R, V / BLOCK)."""
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + tl.program_id(0) * V + i
    z = tl.load(at, i < V, 0.0)
    if HAS_CAP:
        z = cap(z, inverse, twice, once)
    if HAS_DIVISOR:
        z = tl.div_rn(z, divisor)
    tl.store(at, z, i < V)


@triton.jit
def _order(x, is_there):
    """Return whole numbers in the order of floats: NaN above all, both zeros alike; what is not there below all."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    order = tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    return tl.where(is_there, order, _NONE)


@triton.jit
def choose(
    logits, noises, largest, ids, totals, V, BLOCKS, K: tl.constexpr, IS_DRAWN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Find the K largest of each BLOCK logits (R, V), of equal ones the first, and the sum of e^(logit - largest).

    Drawn, logits are multiplied by a factor and the noise is added first: noises (R, 3) has a row's key in two words
    and the factor. NaN is larger than all. largest, ids (R, V / BLOCK, K), id -1 where there are fewer; totals
    (R, V / BLOCK). Grid (R, V / BLOCK).
    """
    row, block = tl.program_id(0), tl.program_id(1)
    at, place = row * BLOCKS + block, tl.arange(0, BLOCK)
    i = block * BLOCK + place
    z = tl.load(logits + row * V + i, i < V, float("-inf"))
    if IS_DRAWN:
        low = tl.load(noises + 3 * row).to(tl.uint32, bitcast=True)
        high = tl.load(noises + 3 * row + 1).to(tl.uint32, bitcast=True)
        factor = tl.load(noises + 3 * row + 2).to(tl.float32, bitcast=True)
        z = z * factor + gumbel(i, low, high)
    order = _order(z, i < V)
    for j in range(K):
        best = tl.argmax(order, 0)
        bits = tl.sum(tl.where(place == best, z.to(tl.int32, bitcast=True), 0), 0)
        tl.store(largest + at * K + j, bits.to(tl.float32, bitcast=True))
        tl.store(ids + at * K + j, tl.where(tl.max(order, 0) == _NONE, -1, block * BLOCK + best))
        order = tl.where(place == best, _NONE, order)
    if not IS_DRAWN:
        top = tl.max(tl.where(z == z, z, float("inf")), 0)
        base = tl.where(tl.abs(top) == float("inf"), 0.0, top)
        terms, part = tl.reshape(exp(z - base), (BLOCK // 16, 16)), tl.arange(0, BLOCK // 16)
        total = tl.zeros((16,), tl.float32)
        for j in tl.static_range(BLOCK // 16):  # parts in order: one of them and zeros at a time
            total += tl.sum(tl.where(part[:, None] == j, terms, 0.0), 0)
        tl.store(totals + at + tl.arange(0, 1), sum16(total[None]))


@triton.jit
def choose_of_blocks(largest, ids, found, COUNT, STRIDE, K: tl.constexpr, WIDE: tl.constexpr):
    """Find the K largest of the COUNT that `choose` found in a row: found (R, STRIDE), K ids and bits. Grid (R,)."""
    row, i = tl.program_id(0), tl.arange(0, WIDE)
    at = row * COUNT + i
    z = tl.load(largest + at, i < COUNT, float("-inf"))
    order = _order(z, tl.load(ids + at, i < COUNT, -1) >= 0)
    for j in range(K):
        best = tl.argmax(order, 0)
        to, at_best = found + row * STRIDE + 2 * j, row * COUNT + best
        tl.store(to, tl.load(ids + at_best))
        tl.store(to + 1, tl.load(largest + at_best).to(tl.int32, bitcast=True))
        order = tl.where(i == best, _NONE, order)


@triton.jit
def add_totals(largest, totals, found, BLOCKS, K, STRIDE):
    """Add up a row's sums of `choose`, relative to its largest logit: bits of both, found (R, STRIDE). Grid (R,)."""
    row, lane = tl.program_id(0), tl.arange(0, 16)
    best = tl.full((16,), float("-inf"), tl.float32)
    for start in range(0, BLOCKS, 16):
        i = start + lane
        own = tl.load(largest + (row * BLOCKS + i) * K, i < BLOCKS, float("-inf"))
        best = tl.maximum(best, own)
    most = tl.max(best, 0)
    base = tl.where(tl.abs(most) == float("inf"), 0.0, most)
    added = tl.zeros((16,), tl.float32)
    for start in range(0, BLOCKS, 16):
        i = start + lane
        own = tl.load(largest + (row * BLOCKS + i) * K, i < BLOCKS, float("-inf"))
        added = tl.fma(tl.load(totals + row * BLOCKS + i, i < BLOCKS, 0.0), exp(own - base), added)
    at = found + row * STRIDE
    tl.store(at, most.to(tl.int32, bitcast=True))
    tl.store(at + 1 + tl.arange(0, 1), sum16(added[None]).to(tl.int32, bitcast=True))
