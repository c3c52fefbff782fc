"""The kernels of attention over a paged cache: a run of chunks attended to, runs merged.

A row sees positions `first` to its own, or to the last of its block. Below `base` they lie in the cache row of that
number; above it the row's own path says where: so a key is in the same lane of the same chunk whether its row was
drafted in a tree or decoded alone.
Runs of chunks are those of csrc/model/types.h (`run_stop`), whatever else is in the pass.

R rows, H heads, G kv heads, E head dim, WIDE the power of two at or above it, S slots of the pass.
"""

import triton
import triton.language as tl

from forerun.gpu.numbers import CHUNK, GROUP, cap, exp, round_int8, store_codes, sum64


@triton.jit
def _score_floats(
    q, keys, at, is_head, seen, block, lane, G, kv_head, E: tl.constexpr, PAIRS: tl.constexpr
):
    """Score a chunk's keys for PAIRS heads: dimensions in order. (PAIRS, 64)."""
    key = keys + (block * G + kv_head) * E * CHUNK + lane
    score = tl.zeros((PAIRS, CHUNK), tl.float32)
    for i in range(E):
        query = tl.load(q + at * E + i, is_head, 0.0)[:, None]
        score = tl.fma(query, tl.load(key + i * CHUNK, seen, 0.0).to(tl.float32)[None], score)
    return score


@triton.jit
def _score_codes(
    q_codes, q_scales, keys, key_scales, at, is_head, seen, block, lane, G, kv_head, E: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Score int8 keys: exact dots of 32 dimensions times their scales, in order, times the query's. (PAIRS, 64)."""
    KEY_GROUPS: tl.constexpr = (E + GROUP - 1) // GROUP
    key = keys + ((block * G + kv_head) * CHUNK + lane) * E
    key_scale = key_scales + (block * G + kv_head) * KEY_GROUPS * CHUNK + lane
    total = tl.zeros((PAIRS, CHUNK), tl.float32)
    for g in range(KEY_GROUPS):
        d = g * GROUP + tl.arange(0, GROUP)
        query = tl.load(q_codes + at[:, None] * E + d[None], is_head[:, None] & (d < E)[None], 0)
        codes = tl.load(key[None] + d[:, None], seen[None] & (d < E)[:, None], 0)
        dot = tl.dot(query, codes, out_dtype=tl.int32).to(tl.float32)
        scale = tl.load(key_scale + g * CHUNK, seen, 0.0).to(tl.float32)
        total = tl.fma(dot, scale[None], total)
    return total * tl.load(q_scales + at, is_head, 0.0)[:, None]


@triton.jit
def _add_values(
    weight, out, values, first, stop, base, path, table, G, kv_head, e, E: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """Add weights (PAIRS, 64) times values of positions first..stop of a chunk, in order."""
    for j in range(first, stop):
        here = j
        if j >= base:
            here = tl.load(path + j - base)
        block = tl.load(table + here // CHUNK)
        value = values + ((block * G + kv_head) * CHUNK + here % CHUNK) * E + e
        own = tl.gather(weight, (tl.zeros((PAIRS, 1), tl.int32) + j) % CHUNK, 1)
        out = tl.fma(own, tl.load(value, e < E, 0.0).to(tl.float32)[None], out)
    return out


@triton.jit
def _add_codes(
    weight, out, values, value_scales, seen, block, lane, G, kv_head, e, E: tl.constexpr
):
    """Add weights (PAIRS, 64), rounded to int8, times int8 values: one exact dot a chunk, times a factor a pair."""
    scale = tl.load(value_scales + (block * G + kv_head) * CHUNK + lane, seen, 0.0)
    code, factor = round_int8(weight * scale[None])
    value = values + (((block * G + kv_head) * CHUNK + lane) * E)[:, None] + e[None]
    codes = tl.load(value, seen[:, None] & (e < E)[None], 0)
    dot = tl.dot(code.to(tl.int8), codes, out_dtype=tl.int32)
    return tl.fma(dot.to(tl.float32), factor[:, None], out)


@triton.jit
def attend(
    q, q_codes, q_scales, keys, key_scales, values, value_scales, lasts, windows, bases, paths, PATH, slots, tables,
    TABLE, runs, RUNS, inverse, twice, once, tops, totals, outs,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, PAIRS: tl.constexpr, WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, IS_INT8: tl.constexpr,
):  # fmt: skip
    """Attend to one run of chunks for the PAIRS heads of a row and kv head. Grid (R, G, RUNS).

    lasts (R,): the last positions that rows see. windows (R,): the last of WINDOW positions that are the first of
    these. paths (R, PATH): the cache rows of positions base, base + 1, ... runs (RUNS + 1,): the first chunks of runs.
    The softmax states go to tops, totals (R, H, RUNS) and outs (R, H, RUNS, E).
    """
    row, kv_head, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pair, lane, e = tl.arange(0, PAIRS), tl.arange(0, CHUNK), tl.arange(0, WIDE)
    is_head = pair < H // G
    at = row * H + kv_head * (H // G) + pair
    position, base = tl.load(lasts + row), tl.load(bases + row)
    path, table = paths + row * PATH, tables + tl.load(slots + row) * TABLE
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, tl.load(windows + row) - WINDOW + 1)
    top = tl.full((PAIRS,), float("-inf"), tl.float32)
    total = tl.zeros((PAIRS,), tl.float32)
    out = tl.zeros((PAIRS, WIDE), tl.float32)
    start = tl.maximum(tl.load(runs + run), first // CHUNK)
    for chunk in range(start, tl.minimum(tl.load(runs + run + 1), position // CHUNK + 1)):
        here = chunk * CHUNK + lane
        seen = (here >= first) & (here <= position)
        is_above = here >= base
        cached = tl.where(is_above, tl.load(path + here - base, seen & is_above, 0), here)
        block = tl.load(table + cached // CHUNK, seen, 0)
        if IS_INT8:
            score = _score_codes(
                q_codes,
                q_scales,
                keys,
                key_scales,
                at,
                is_head,
                seen,
                block,
                cached % CHUNK,
                G,
                kv_head,
                E,
                PAIRS,
            )
        else:
            score = _score_floats(
                q, keys, at, is_head, seen, block, cached % CHUNK, G, kv_head, E, PAIRS
            )
        if HAS_CAP:
            score = cap(score, inverse, twice, once)
        score = tl.where(seen[None], score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        factor = exp(top - new)
        weight = exp(score - new[:, None])
        total = total * factor + sum64(weight)
        out = out * factor[:, None]
        top = new
        if IS_INT8:
            out = _add_codes(
                weight, out, values, value_scales, seen, block, cached % CHUNK, G, kv_head, e, E
            )
        else:
            out = _add_values(
                weight, out, values, tl.maximum(first, chunk * CHUNK), tl.minimum(position + 1, chunk * CHUNK + CHUNK),
                base, path, table, G, kv_head, e, E, PAIRS,
            )  # fmt: skip
    at = at * RUNS + run
    tl.store(tops + at, top, is_head)
    tl.store(totals + at, total, is_head)
    tl.store(outs + at[:, None] * E + e[None], out, is_head[:, None] & (e < E)[None])


@triton.jit
def _merge_states(top, total, out, young_top, young_total, young_out):
    """Add a state of later keys; one without keys changes nothing."""
    new = tl.maximum(top, young_top)
    base = tl.where(new == float("-inf"), 0.0, new)
    old, young = exp(top - base), exp(young_top - base)
    merged_total = total * old + young_total * young
    merged_out = tl.fma(young_out, young, out * old)
    is_empty, is_first = young_top == float("-inf"), top == float("-inf")
    merged_total = tl.where(is_first, young_total, merged_total)
    merged_out = tl.where(is_first, young_out, merged_out)
    return (
        tl.where(is_empty, top, new),
        tl.where(is_empty, total, merged_total),
        tl.where(is_empty, out, merged_out),
    )


@triton.jit
def merge(
    RUNS, tops, totals, outs, sinks, attended, codes, scales, sums,
    H: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr,
    TO_CODES: tl.constexpr,
):  # fmt: skip
    """Merge the runs of a head in order, then its sink, and divide: as codes, or as floats (R, H E). Grid (R, H)."""
    row, head = tl.program_id(0), tl.program_id(1)
    at = (row * H + head) * RUNS
    group = tl.arange(0, WIDE // GROUP)
    e = group[:, None] * GROUP + tl.arange(0, GROUP)[None]
    top, total = tl.load(tops + at), tl.load(totals + at)
    out = tl.load(outs + at * E + e, e < E, 0.0)
    for run in range(1, RUNS):
        young = tl.load(outs + (at + run) * E + e, e < E, 0.0)
        top, total, out = _merge_states(
            top, total, out, tl.load(tops + at + run), tl.load(totals + at + run), young
        )
    if HAS_SINKS:
        top, total, out = _merge_states(
            top, total, out, tl.load(sinks + head), 1.0, tl.zeros_like(out)
        )
    out = out * tl.div_rn(1.0, total)
    if TO_CODES:
        first = head * (E // GROUP)
        store_codes(out, first + group, group < E // GROUP, row, codes, scales, sums, H * E, ROWS)
    else:
        tl.store(attended + row * H * E + head * E + e, out, e < E)
