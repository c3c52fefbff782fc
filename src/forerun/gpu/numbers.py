"""Device functions: the float operations whose order csrc/kernels fixes, and rounding to int8.

Each operation rounds once as IEEE 754 says (add, mul, fma, div, sqrt), in the order of the CPU's kernels: 16 lanes,
then a halving tree. Kernels are launched with `LAUNCH`, or the compiler would fuse multiplications and additions.
"""

import triton
import triton.language as tl

LANES = tl.constexpr(16)
"""Partial sums of a row (kTile of csrc/model/types.h)."""
GROUP = tl.constexpr(32)
"""Numbers that share a scale (kGroup)."""
CHUNK = tl.constexpr(64)
"""Positions of a softmax block, rows of a cache block (kChunk)."""
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""Options of every launch."""
WIDE_LAUNCH = LAUNCH | {"num_warps": 8}
"""Those of attention, whose sums would spill registers otherwise."""


@triton.jit
def rint(x):
    """Round to the nearest whole number, ties to even, |x| < 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def exp(x):
    """Return e^x by the polynomial of csrc/kernels/rows.h."""
    t = tl.maximum(x * 1.44269504, -127.0, propagate_nan=tl.PropagateNan.ALL)
    t = tl.minimum(t, 127.0, propagate_nan=tl.PropagateNan.ALL)
    n = rint(t)
    r = t - n
    y = tl.fma(r, 1.326472731e-3, 9.671512991e-3)
    y = tl.fma(y, r, 5.550733581e-2)
    y = tl.fma(y, r, 2.402224243e-1)
    y = tl.fma(y, r, 6.931470037e-1)
    y = tl.fma(y, r, 1.0)
    power = tl.where(n == n, n, 0.0).to(tl.int32) + 127
    return y * (power << 23).to(tl.float32, bitcast=True)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(0.0 - x))


@triton.jit
def gelu(x):
    """Return x P(x), P the normal distribution's, by the polynomial of csrc/kernels/rows.h."""
    a = tl.minimum(tl.abs(x), 10.0, propagate_nan=tl.PropagateNan.ALL)
    t = tl.div_rn(1.0, tl.fma(a, 0.3, 1.0))
    y = tl.fma(t, 3.754836693e-2, -1.650789231e-1)
    y = tl.fma(y, t, 2.200876772e-1)
    y = tl.fma(y, t, -6.652673334e-2)
    y = tl.fma(y, t, 1.354976445e-1)
    y = tl.fma(y, t, 9.775570035e-2)
    y = tl.fma(y, t, 1.211112589e-1)
    y = tl.fma(y, t, 1.196050346e-1)
    tail = (y * t) * exp(-0.5 * (a * a))
    return tl.where(x < 0.0, 0.0, x) - a * tail


@triton.jit
def cap(x, inverse, twice, once):
    """Return limit tanh(x / limit), given 2 / limit, 2 limit and -limit."""
    return tl.fma(twice, sigmoid(x * inverse), once)


@triton.jit
def _halve(x, WIDTH: tl.constexpr):
    """Add lanes i and i + WIDTH: (n, 2 WIDTH) -> (n, WIDTH)."""
    low, high = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, WIDTH)), (0, 2, 1)))
    return low + high


@triton.jit
def sum16(x):
    """Add up 16 lanes by the halving tree: (n, 16) -> (n,)."""
    x = _halve(_halve(_halve(x, 8), 4), 2)
    low, high = tl.split(x)
    return low + high


@triton.jit
def sum64(x):
    """Add four sets of 16 lanes in order, then these by the tree: (n, 64) -> (n,)."""
    x = tl.permute(tl.reshape(x, (x.shape[0], 2, 2, 16)), (0, 3, 1, 2))
    even, odd = tl.split(x)  # by the last bit of the number of the set
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return sum16(((first + second) + third) + fourth)


@triton.jit
def moments(x, eps, WIDTH: tl.constexpr, IS_LAYER: tl.constexpr):
    """Return the mean (0 of an RMS norm) and the factor of the norm of WIDTH numbers at x, each (1,)."""
    lane = tl.arange(0, LANES)
    mean = tl.zeros((1,), tl.float32)
    if IS_LAYER:
        total = tl.zeros((1, LANES), tl.float32)
        for i in range(WIDTH // LANES):
            total += tl.load(x + i * LANES + lane)[None]
        mean = tl.div_rn(sum16(total), WIDTH * 1.0)
    square = tl.zeros((1, LANES), tl.float32)
    for i in range(WIDTH // LANES):
        centred = tl.load(x + i * LANES + lane)[None] - mean[:, None]
        square = tl.fma(centred, centred, square)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(sum16(square), WIDTH * 1.0) + eps))
    return mean, factor


@triton.jit
def round_int8(y):
    """Round each of y (n, m) to int8 with its own scale, largest / 127: codes as int32, scales (n,).

    A row with NaN or infinity gets codes 0 and scale NaN; below 1e-30 all are 0.
    """
    largest = tl.max(tl.abs(y), 1)
    flag = tl.sum(y * 0.0, 1)  # 0 or NaN
    is_finite = flag == 0.0
    is_zero = (largest < 1e-30) | (is_finite == 0)
    inverse = tl.where(is_zero, 0.0, tl.div_rn(127.0, tl.where(is_zero, 1.0, largest)))
    code = rint(tl.where(is_finite[:, None], y * inverse[:, None], 0.0)).to(tl.int32)
    scale = tl.where(is_zero, 0.0, tl.div_rn(tl.where(is_zero, 0.0, largest), 127.0))
    return code, tl.where(is_finite, scale, flag)


@triton.jit
def store_codes(y, group, mask, row, codes, scales, sums, K: tl.constexpr, ROWS: tl.constexpr):
    """Round y (n, 32), groups `group` (n,) of a row, and store them; sum = scale * sum of codes.

    codes (ROWS, K) int8; scales, sums (K / 32, ROWS) fp32.
    """
    code, scale = round_int8(y)
    at = group * ROWS + row
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None]
    tl.store(codes + row * K + column, code.to(tl.int8), mask[:, None])
    tl.store(scales + at, scale, mask)
    tl.store(sums + at, scale * tl.sum(code, 1).to(tl.float32), mask)


@triton.jit
def _mix32(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _log_parts(x):
    """Split x = 2^e m, log m = 2 arctanh((m - 1) / (m + 1)): 1 - m, m + 1 and -e log 2."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    m = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    return (m - 1.0) * -1.0, m + 1.0, exponent.to(tl.float32) * -0.6931472


@triton.jit
def _double_arctanh(z):
    square = z * z
    doubled = z + z
    series = square * 0.07692307692 + 0.09090909091
    series = series * square + 0.1111111111
    series = series * square + 0.1428571429
    series = series * square + 0.2
    series = series * square + 0.3333333333
    return doubled * square * series + doubled


@triton.jit
def gumbel(tokens, low, high):
    """Return the sampler's noise of tokens, given the key's halves (uint32), as csrc/kernels/noise.h has it."""
    bits = _mix32(_mix32(tokens.to(tl.uint32) * 0x9E3779B9 + low) + high)
    is_small = bits < 0x80000000
    v = ((bits & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    above, below, whole = _log_parts(v)
    z = tl.div_rn(tl.where(is_small, v, above), tl.where(is_small, 2.0 - v, below))
    exponential = tl.where(is_small, 0.0, whole) + _double_arctanh(z)
    above, below, whole = _log_parts(exponential)
    return whole + _double_arctanh(tl.div_rn(above, below))
