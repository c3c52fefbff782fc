"""The kernel that puts heads where attention reads them: queries in rows, keys and values in the paged cache.

R rows, H heads, G kv heads, E head dim, WIDE the power of two at or above it.
"""

import triton
import triton.language as tl

from forerun.gpu.numbers import CHUNK, GROUP, moments, rint, round_int8


@triton.jit
def _store_key(
    y, cached, keys, key_scales, G, kv_head, e, E: tl.constexpr, WIDE: tl.constexpr, IS_INT8: tl.constexpr
):  # fmt: skip
    """Write a key (WIDE,) to a cache row: floats (blocks, G, E, 64); int8 (blocks, G, 64, E).

    32 dimensions of int8 share a scale (blocks, G, E / 32, 64), rounded to fp16 before they are divided by it.
    """
    block, lane = cached // CHUNK, cached % CHUNK
    if IS_INT8:
        KEY_GROUPS: tl.constexpr = (E + GROUP - 1) // GROUP
        group = tl.arange(0, WIDE // GROUP)
        y = tl.reshape(tl.where(e < E, y, 0.0), (WIDE // GROUP, GROUP))
        largest, flag = tl.max(tl.abs(y), 1), tl.sum(y * 0.0, 1)
        is_finite = flag == 0.0
        scale = tl.where(is_finite & (largest >= 1e-30), tl.div_rn(largest, 127.0), 0.0)
        scale = tl.where(is_finite, scale, flag).to(tl.float16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0.0, tl.div_rn(1.0, tl.where(wide > 0.0, wide, 1.0)), 0.0)
        code = tl.where(is_finite[:, None], y * inverse[:, None], 0.0)
        code = rint(tl.where(code > 127.0, 127.0, tl.where(code < -127.0, -127.0, code))).to(
            tl.int8
        )
        d = tl.reshape(e, (WIDE // GROUP, GROUP))
        tl.store(keys + ((block * G + kv_head) * CHUNK + lane) * E + d, code, d < E)
        at = ((block * G + kv_head) * KEY_GROUPS + group) * CHUNK + lane
        tl.store(key_scales + at, scale, group < KEY_GROUPS)
    else:
        at = ((block * G + kv_head) * E + e) * CHUNK + lane
        tl.store(keys + at, y.to(keys.dtype.element_ty), e < E)


@triton.jit
def _store_value(
    x, cached, values, value_scales, G, kv_head, e, E: tl.constexpr, IS_INT8: tl.constexpr
):
    """Write a value (WIDE,) to a cache row: (blocks, G, 64, E); scales of int8 (blocks, G, 64)."""
    block, lane = cached // CHUNK, cached % CHUNK
    at = ((block * G + kv_head) * CHUNK + lane) * E + e
    if IS_INT8:
        code, scale = round_int8(tl.where(e < E, x, 0.0)[None])
        code = tl.reshape(code, (e.shape[0],)).to(tl.int8)
        tl.store(values + at, code, e < E)
        tl.store(value_scales + (block * G + kv_head) * CHUNK + lane + tl.arange(0, 1), scale)
    else:
        tl.store(values + at, x.to(values.dtype.element_ty), e < E)


@triton.jit
def _turned(
    start, norm, eps, cos, sin, position, e, E: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    IS_LAYER: tl.constexpr,
):  # fmt: skip
    """Return a head (WIDE,) normed by weights at `norm` and rotated, in the family's order."""
    y = tl.load(start + e, e < E, 0.0)
    other = tl.where(e < HALF, e + HALF, e - HALF)
    is_turned = e < 2 * HALF
    partner = tl.load(start + other, is_turned, 0.0)
    if NORM == "before":
        mean, factor = moments(start, eps, E, IS_LAYER)
        y = (y - mean) * factor * tl.load(norm + e, e < E, 0.0)
        partner = (partner - mean) * factor * tl.load(norm + other, is_turned, 0.0)
    if HALF > 0:
        angle = position * HALF + e % HALF
        c, s = tl.load(cos + angle, is_turned, 0.0), tl.load(sin + angle, is_turned, 0.0)
        turned = y * c + tl.where(e < HALF, 0.0 - partner, partner) * s
        y = tl.where(is_turned, turned, y)
    if NORM == "after":
        tl.debug_barrier()
        tl.store(start + e, y, e < E)
        tl.debug_barrier()
        mean, factor = moments(start, eps, E, IS_LAYER)
        y = (y - mean) * factor * tl.load(norm + e, e < E, 0.0)
    return y


@triton.jit
def place(
    qkv, norms, eps, cos, sin, positions, cache_rows, slots, tables, TABLE, query_scales, q, q_codes, q_scales,
    keys, key_scales, values, value_scales,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    IS_LAYER: tl.constexpr, IS_INT8: tl.constexpr,
):  # fmt: skip
    """Norm and rotate heads of qkv (R, (H + 2 G) E), scale queries, write keys and values. Grid (R, H + 2 G).

    norms (H + G, E), NORM "before" or "after" the rotation of pairs (i, i + HALF), or "none". cos, sin (positions,
    HALF). Row r of slot s lies in block tables[s, r // 64], TABLE apart. q (R, H, E), or its codes with scales (R, H).
    """
    row, head = tl.program_id(0), tl.program_id(1)
    e = tl.arange(0, WIDE)
    start = qkv + (row * (H + 2 * G) + head) * E
    own = tl.load(cache_rows + row)
    block = tl.load(tables + tl.load(slots + row) * TABLE + own // CHUNK)
    cached = block * CHUNK + own % CHUNK
    if head >= H + G:
        x = tl.load(start + e, e < E, 0.0)
        _store_value(x, cached, values, value_scales, G, head - H - G, e, E, IS_INT8)
    else:
        y = _turned(
            start,
            norms + head * E,
            eps,
            cos,
            sin,
            tl.load(positions + row),
            e,
            E,
            HALF,
            NORM,
            IS_LAYER,
        )
        if head >= H:
            _store_key(y, cached, keys, key_scales, G, head - H, e, E, WIDE, IS_INT8)
        else:
            y = y * tl.load(query_scales + row)
            at = row * H + head
            if IS_INT8:
                code, scale = round_int8(tl.where(e < E, y, 0.0)[None])
                tl.store(q_codes + at * E + e, tl.reshape(code, (WIDE,)).to(tl.int8), e < E)
                tl.store(q_scales + at + tl.arange(0, 1), scale)
            else:
                tl.store(q + at * E + e, y, e < E)
