"""The kernels of rows: norms, linear layers, activations.

R rows, D width, K inputs and N outputs of a matrix, F width of an MLP. Rows are handed on as int8 codes with a scale
for each 32 numbers (`numbers.store_codes`), or as floats. Dots of 32 codes are exact in any order, so the shape of
tiles, tensor cores and the number of rows change no bit; the float operations on them are the CPU's, in its order:
groups ascending, none split over programs.
"""

import triton
import triton.language as tl

from forerun.gpu.codes import read_codes, read_numbers
from forerun.gpu.numbers import GROUP, gelu, moments, sigmoid, store_codes


@triton.jit
def norm(
    x, weight, bias, order, eps, multiplier, out, codes, scales, sums,
    D: tl.constexpr, X: tl.constexpr, HAS_ORDER: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    HAS_NORM: tl.constexpr, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr, TO_CODES: tl.constexpr,
    TO_FLOATS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Norm rows x (R, D), X apart: as codes, as floats out (R, X), or times a multiplier added to these. Grid (R,).

    GROUPS is D / 32, rounded up to a power of two. Without HAS_NORM rows are handed on as they are. With HAS_ORDER
    codes have the columns in an order of their own (D,).
    """
    row = tl.program_id(0)
    group = tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None]
    is_there = at < D
    column = tl.load(order + at, is_there, 0) if HAS_ORDER else at
    y = tl.load(x + row * X + column, is_there, 0.0)
    if HAS_NORM:
        mean, factor = moments(x + row * X, eps, D, IS_LAYER)
        y = (y - mean[:, None]) * factor[:, None]
        scale = tl.load(weight + column, is_there, 0.0)
        y = tl.fma(y, scale, tl.load(bias + column, is_there, 0.0)) if HAS_BIAS else y * scale
    if TO_CODES:
        store_codes(y, group, group * GROUP < D, row, codes, scales, sums, D, ROWS)
    if TO_FLOATS:
        tl.debug_barrier()  # out may be x, which other warps still read
        tl.store(out + row * X + column, y, is_there)
    if ADDS:
        before = tl.load(out + row * X + column, is_there, 0.0)
        tl.store(out + row * X + column, before + multiplier * y, is_there)


@triton.jit
def _tile(
    pairs, R, N, SHARE: tl.constexpr, OUTPUTS: tl.constexpr, MOST: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return a program's rows, those that it reads for them, the matrix's rows n, the first of them and their end.

    With SHARE, the matrix is experts' of OUTPUTS rows each, and rows are pairs of a row and an expert that it has
    chosen: of those of an expert, listed in `pairs` (experts, MOST) before -1, every SHARE read the same row.
    """
    part = tl.program_id(1)
    row = part * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if SHARE == 0:
        return tl.where(row < R, row, -1), row, n, 0, N
    blocks = tl.cdiv(R, BLOCK_M)
    first = part // blocks * OUTPUTS
    row = tl.load(pairs + part // blocks * MOST + part % blocks * BLOCK_M + tl.arange(0, BLOCK_M))
    return row, tl.maximum(row, 0) // SHARE, first + n, first, first + OUTPUTS


@triton.jit
def _put(
    acc, bias, out, row, n, first, stop, OUT, multiplier, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr
):
    """Store sums (rows, n) at out (R, OUT apart), or add them to what is there, times a multiplier."""
    is_there = (row >= 0)[:, None] & (n < stop)[None]
    if HAS_BIAS:
        acc = acc + tl.load(bias + n, n < stop, 0.0)[None]
    at = out + row[:, None] * OUT + (n - first)[None]
    if ADDS:
        acc = tl.fma(acc, multiplier, tl.load(at, is_there, 0.0))
    tl.store(at, acc, is_there)


@triton.jit
def _add_group(
    acc, packed, part, group, codes, scales, sums, more, weight_scales, factors, mins, min_factors, row, n, N,
    K: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, MORE_BITS: tl.constexpr, ZERO: tl.constexpr,
    PARTS: tl.constexpr, SCALE_GROUP: tl.constexpr, HAS_FACTORS: tl.constexpr, HAS_MINS: tl.constexpr,
    IS_ZERO_POINT: tl.constexpr,
):  # fmt: skip
    """Add 32 inputs: acc + float(dot) * (scale * row scale), then + minimum * row sum, each rounded once."""
    k = tl.arange(0, GROUP)
    weight = read_codes(packed, more, part, group, n, N, K, BITS, MORE_BITS, ZERO)
    x = tl.load(codes + row[:, None] * K + group * GROUP + k[None])
    row_scale = tl.load(scales + group * ROWS + row)[:, None]
    for i in tl.static_range(PARTS):
        own = x
        if PARTS == 2:
            own = tl.where((k // 16 == i)[None], x, 0).to(tl.int8)
        dot = tl.dot(own, weight, out_dtype=tl.int32)
        if BITS == 8 and ZERO != 0:  # bytes that are too small by so much
            dot = dot - ZERO * tl.sum(own.to(tl.int32), 1)[:, None]
        first = group * GROUP + i * 16
        scale = read_numbers(weight_scales, factors, first, n, N, SCALE_GROUP, HAS_FACTORS)
        acc = tl.fma(dot.to(tl.float32), scale[None] * row_scale, acc)
        if HAS_MINS:
            least = read_numbers(mins, min_factors, first, n, N, SCALE_GROUP, HAS_FACTORS)
            if IS_ZERO_POINT:
                least = scale * least
            if PARTS == 2:
                total = row_scale * tl.sum(own.to(tl.int32), 1)[:, None].to(tl.float32)
            else:
                total = tl.load(sums + group * ROWS + row)[:, None]
            acc = tl.fma(least[None], total, acc)
    return acc


@triton.jit
def linear(
    codes, scales, sums, weights, more, weight_scales, factors, mins, min_factors, bias, out, pairs, R, N, OUT,
    multiplier, SHARE: tl.constexpr, OUTPUTS: tl.constexpr, MOST: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, MORE_BITS: tl.constexpr, ZERO: tl.constexpr,
    PARTS: tl.constexpr, SCALE_GROUP: tl.constexpr, HAS_FACTORS: tl.constexpr, HAS_MINS: tl.constexpr,
    IS_ZERO_POINT: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Multiply rows of codes by a matrix of codes. Grid (N / BLOCK_N, R / BLOCK_M): no program splits K.

    Of experts (OUTPUTS / BLOCK_N, experts R / BLOCK_M): see `_tile`.
    """
    row, read, n, first, stop = _tile(pairs, R, N, SHARE, OUTPUTS, MOST, BLOCK_M, BLOCK_N)
    if SHARE > 0:  # noqa: SIM102  # compiled for one or the other
        if tl.max(row) < 0:
            return
    at = weights + n[None] * GROUP + tl.arange(0, GROUP)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    SHARED: tl.constexpr = 8 // BITS  # groups in a byte
    for step in range(K // GROUP // SHARED):
        packed = tl.load(at + step * N * GROUP, n[None] < N, 0)
        for part in tl.static_range(SHARED):
            acc = _add_group(
                acc, packed, part, step * SHARED + part, codes, scales, sums, more, weight_scales, factors, mins,
                min_factors, read, n, N, K, ROWS, BITS, MORE_BITS, ZERO, PARTS, SCALE_GROUP, HAS_FACTORS, HAS_MINS,
                IS_ZERO_POINT,
            )  # fmt: skip
    if K // GROUP % SHARED != 0:  # the last byte has one group
        packed = tl.load(at + (K // GROUP // SHARED) * N * GROUP, n[None] < N, 0)
        acc = _add_group(
            acc, packed, 0, K // GROUP - 1, codes, scales, sums, more, weight_scales, factors, mins, min_factors, read,
            n, N, K, ROWS, BITS, MORE_BITS, ZERO, PARTS, SCALE_GROUP, HAS_FACTORS, HAS_MINS, IS_ZERO_POINT,
        )  # fmt: skip
    _put(acc, bias, out, row, n, first, stop, OUT, multiplier, HAS_BIAS, ADDS)


@triton.jit
def _read_float(weights, IS_FLOAT8: tl.constexpr):
    """Return numbers as fp32; those of e4m3 256 times too small, as fp16 with the same bits holds them."""
    found = weights
    if IS_FLOAT8:
        word = weights.to(tl.int16)
        word = ((word & 0x80) << 8) | ((word & 0x7F) << 7)
        found = word.to(tl.float16, bitcast=True)
    return found.to(tl.float32)


@triton.jit
def float_linear(
    x, weights, weight_scales, bias, out, pairs, R, N, OUT, multiplier,
    SHARE: tl.constexpr, OUTPUTS: tl.constexpr, MOST: tl.constexpr, K: tl.constexpr, X: tl.constexpr,
    GROUP_K: tl.constexpr, IS_FLOAT8: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Multiply rows x (R, K), X apart, by floats (K, N): even and odd inputs apart. Grid (N / BLOCK_N, R / BLOCK_M).

    GROUP_K inputs share a scale of e4m3 numbers; of the others it is K. Of experts see `linear`.
    """
    row, read, n, first, stop = _tile(pairs, R, N, SHARE, OUTPUTS, MOST, BLOCK_M, BLOCK_N)
    if SHARE > 0:  # noqa: SIM102  # compiled for one or the other
        if tl.max(row) < 0:
            return
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, GROUP_K):
        even = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        odd = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(start, tl.minimum(start + GROUP_K, K), 2):
            at = weights + k * N + n
            left = _read_float(tl.load(at, n < N, 0), IS_FLOAT8)[None]
            right = _read_float(tl.load(at + N, n < N, 0), IS_FLOAT8)[None]
            even = tl.fma(left, tl.load(x + read * X + k)[:, None], even)
            odd = tl.fma(right, tl.load(x + read * X + k + 1)[:, None], odd)
        if IS_FLOAT8:
            scale = tl.load(weight_scales + (start // GROUP_K) * N + n, n < N, 0.0) * 256.0
            acc = tl.fma(even + odd, scale[None], acc)
        else:
            acc = even + odd
    _put(acc, bias, out, row, n, first, stop, OUT, multiplier, HAS_BIAS, ADDS)


@triton.jit
def _activation(x, KIND: tl.constexpr):
    """Apply an activation of `model.config.Activation`."""
    y = x
    if KIND == "silu":
        y = x * sigmoid(x)
    elif KIND == "gelu":
        y = gelu(x)
    elif KIND == "gelu_tanh":
        y = x * sigmoid(1.59576912 * tl.fma(0.044715, (x * x) * x, x))
    elif KIND == "relu":
        y = tl.where(x < 0.0, 0.0, x)
    elif KIND == "relu2":
        y = tl.where(x < 0.0, 0.0, x) * tl.where(x < 0.0, 0.0, x)
    else:
        y = x * sigmoid(1.702 * x)
    return y


@triton.jit
def swiglu(
    up, out, codes, scales, sums,
    F: tl.constexpr, KIND: tl.constexpr, IS_GATED: tl.constexpr, TO_CODES: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Activate [gate | up] (R, 2 F), or up (R, F): as codes, or as floats out (R, F). Grid (R, F / 32 / GROUPS)."""
    row, part = tl.program_id(0), tl.program_id(1)
    group = part * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None]
    WIDTH: tl.constexpr = F * (1 + IS_GATED)
    gate = tl.load(up + row * WIDTH + at, at < F, 0.0)
    if KIND == "swiglu_oai":
        other = tl.load(up + row * WIDTH + F + at, at < F, 0.0)
        other = tl.where(other > 7.0, 7.0, other)
        other = tl.where(other < -7.0, -7.0, other)
        y = (other + 1.0) * _activation(tl.where(gate > 7.0, 7.0, gate), KIND)
    else:
        y = _activation(gate, KIND)
        if IS_GATED:
            y = y * tl.load(up + row * WIDTH + F + at, at < F, 0.0)
    if TO_CODES:
        store_codes(y, group, group * GROUP < F, row, codes, scales, sums, F, ROWS)
    else:
        tl.store(out + row * F + at, y, at < F)
