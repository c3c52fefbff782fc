"""A mixture's kernels other than its matrices': a row's choice, rows sorted by expert, what a row adds up.

R rows, A active experts of a row, E experts, D hidden width.
"""

import triton
import triton.language as tl

from forerun.gpu.numbers import exp, sigmoid


@triton.jit
def _in_order(numbers, lane, COUNT: tl.constexpr):
    """Add up the first COUNT numbers, one after the other: one of them and zeros at a time."""
    total = 0.0
    for i in range(COUNT):
        total += tl.sum(tl.where(lane == i, numbers, 0.0), 0)
    return total


@triton.jit
def _of_best_groups(
    order,
    expert,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    ACTIVE: tl.constexpr,
    BEST: tl.constexpr,
):
    """Leave out the experts whose groups of SIZE neighbours are not among the ACTIVE best, by their BEST scores."""
    values = expert * 0.0 + float("-inf")
    for i in range(GROUPS):
        own = tl.where(expert // SIZE == i, order, float("-inf"))
        value = tl.max(own, 0)
        if BEST == 2:
            value += tl.max(tl.where(expert == tl.argmax(own, 0), float("-inf"), own), 0)
        values = tl.where(expert == i, value, values)
    is_left = expert < 0
    for _ in tl.static_range(ACTIVE):
        best = tl.argmax(values, 0)
        is_left |= expert // SIZE == best
        values = tl.where(expert == best, float("-inf"), values)
    return tl.where(is_left, order, float("-inf"))


@triton.jit
def route(
    logits, bias, chosen, weights, sum_offset, scale, multiplier,
    NUM: tl.constexpr, WIDE: tl.constexpr, ACTIVE: tl.constexpr, IS_SIGMOID: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_RENORMALIZED: tl.constexpr, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr,
):  # fmt: skip
    """Choose the experts of rows by logits (R, NUM): chosen, ascending, and their weights (R, ACTIVE). Grid (R,).

    With more than one of GROUPS only the experts of ACTIVE_GROUPS can be chosen.
    """
    row, expert = tl.program_id(0), tl.arange(0, WIDE)
    is_there = expert < NUM
    scores = tl.load(logits + row * NUM + expert, is_there, float("-inf"))
    if IS_SIGMOID:
        scores = sigmoid(scores)
    elif HAS_BIAS:
        scores = exp(scores - tl.max(scores, 0))
        scores = tl.div_rn(scores, _in_order(scores, expert, NUM))
    order = scores
    if HAS_BIAS:
        order = scores + tl.load(bias + expert, is_there, 0.0)
    order = tl.where(is_there, order, float("-inf"))
    order = tl.where(is_there, tl.where(order == order, order, float("inf")), float("-inf"))
    if GROUPS > 1:
        order = _of_best_groups(order, expert, NUM // GROUPS, GROUPS, ACTIVE_GROUPS, GROUP_BEST)
    is_chosen = expert < 0
    for _ in tl.static_range(ACTIVE):
        best = tl.argmax(tl.where(is_chosen, float("-inf"), order), 0)
        is_chosen |= expert == best
    total = 1.0
    if IS_SIGMOID or HAS_BIAS:
        own = scores
    else:
        own = exp(scores - tl.max(order, 0))
        if not IS_RENORMALIZED:
            total = _in_order(own, expert, NUM)
    if IS_RENORMALIZED:
        total = _in_order(tl.where(is_chosen, own, 0.0), expert, NUM) + sum_offset
    own = multiplier * (tl.div_rn(own, total) * scale)
    at = row * ACTIVE + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen + at, expert, is_chosen)
    tl.store(weights + at, own, is_chosen)


@triton.jit
def list_pairs(chosen, lists, R, ACTIVE: tl.constexpr, WIDE: tl.constexpr, MOST: tl.constexpr):
    """List the pairs that chose each expert, ascending: lists (E, MOST), then -1. Grid (E,)."""
    expert, pair, lane = tl.program_id(0), tl.arange(0, WIDE), tl.arange(0, MOST)
    found = tl.load(chosen + pair, pair < R * ACTIVE, -1) == expert
    own = lists + expert * MOST
    tl.store(own + tl.cumsum(found.to(tl.int32), 0) - 1, pair, found)
    tl.store(own + lane, -1, lane >= tl.sum(found.to(tl.int32), 0))


@triton.jit
def add_pairs(x, given, weights, D: tl.constexpr, ACTIVE: tl.constexpr, BLOCK: tl.constexpr):
    """Add to rows x (R, D) what their experts give (R A, D), times weights (R, A), in order. Grid (R, D / BLOCK)."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + row * D + at, at < D, 0.0)
    for i in range(ACTIVE):
        pair = row * ACTIVE + i
        total = total + tl.load(weights + pair) * tl.load(given + pair * D + at, at < D, 0.0)
    tl.store(x + row * D + at, total, at < D)
