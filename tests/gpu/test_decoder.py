"""Interpreted, or on a card, the kernels give the bits of the CPU's: rows of chains, trees, several sequences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("triton")

from forerun.core.batch import Segment
from forerun.gpu import load as room
from tests.gpu.oracle import Both
from tests.native.models import (
    AFTER,
    GATED,
    PARALLEL,
    ROPE,
    SANDWICH,
    SINKS,
    TURNED,
    random_weights,
    text,
)

TREE = (-1, 0, 0, 1, 1, 4)
KINDS = {
    "q4_1": (GATED, "q4_1"),
    "no rope, odd heads": (
        replace(GATED, num_kv_heads=1, head_dim=48, rope=None, num_layers=1),
        "q8_0",
    ),
    "sandwich": (SANDWICH, "q8_0"),
    "after": (AFTER, "q4_0"),
    "parallel": (PARALLEL, "q4_1"),
    "turned": (TURNED, "q8_0"),
    "floats": (
        replace(GATED, norm="layer", gated_mlp=False, activation="relu", num_layers=1),
        "bf16",
    ),
    "sinks": (replace(SINKS, layers=(), num_layers=1, rope=ROPE, sliding_window=29), "f16"),
    "partial rope": (replace(GATED, rope=replace(ROPE, rotary_dim=24), num_layers=1), "mxfp4"),
}


@cache
def both(kind: str) -> Both:
    config, form = KINDS[kind]
    return Both.of(config, random_weights(config, form, has_biases=True), room)


@pytest.mark.parametrize("kv", ["fp16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_over_the_end_of_a_chunk_and_what_is_decoded_above_it(kind: str, kv: str) -> None:
    models = both(kind)
    caches = models.caches(kv)
    models.read(caches, 0, text(62))
    assert models.compare(caches, Segment(0, 62, text(6, 1), TREE), keep=(0, 1, 4, 5))
    assert models.compare(caches, Segment(0, 66, text(2, 2)))


@pytest.mark.parametrize("kv", ["fp16", "int8"])
@pytest.mark.parametrize("base", [0, 126])
def test_chains_and_trees_from_nothing_and_over_the_end_of_a_run(base: int, kv: str) -> None:
    models = both("q4_1")
    caches = models.caches(kv)
    models.read(caches, 0, text(base))
    assert models.compare(caches, Segment(0, base, text(3, 1)))
    assert models.compare(caches, Segment(0, base, text(6, 1), TREE), keep=(0, 2))
    assert models.compare(caches, Segment(0, base + 2, text(1, 2)))
