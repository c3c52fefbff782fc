"""Interpreted, or on a card, the kernels give the bits of the CPU's: rows of chains, trees, several sequences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from forerun.core.batch import Batch, Segment
from forerun.gpu import load as room
from forerun.model.backends.base import BlankWeight
from forerun.weights.rtn import quantized_format
from tests.gpu.oracle import Both, same
from tests.native.models import (
    AFTER,
    GATED,
    PARALLEL,
    ROPE,
    SANDWICH,
    TURNED,
    random_weights,
    text,
)
from tests.native.test_order import CONFIG as ORDERED
from tests.native.test_order import READERS, weights_of

TREE = (-1, 0, 0, 1, 3)
SMALL = replace(GATED, num_layers=1, num_heads=2, num_kv_heads=1)
FLOATS = replace(
    SMALL, norm="layer", gated_mlp=False, activation="relu", rope=replace(ROPE, rotary_dim=24)
)
SINKS = replace(SMALL, activation="swiglu_oai", attention_sinks=True, sliding_window=29)
KINDS = {
    "plain": (replace(GATED, num_layers=1), "q4_1"),
    "no rope, odd heads": (replace(SMALL, head_dim=48, rope=None), "q8_0"),
    "sandwich": (replace(SANDWICH, num_heads=2, num_kv_heads=1), "q8_0"),
    "after": (AFTER, "q4_0"),
    "parallel": (PARALLEL, "q4_1"),
    "turned": (replace(TURNED, num_layers=1), "q8_0"),
    "floats, part of a head turned": (FLOATS, "bf16"),
    "sinks": (SINKS, "mxfp4"),
    "exact gelu": (replace(SMALL, norm="layer", gated_mlp=False, activation="gelu"), "q8_0"),
}
FP16 = ("plain", "no rope, odd heads", "sandwich", "sinks")
"""Kinds whose attention differs; what floats take, the interpreter takes long for."""


@cache
def both(kind: str) -> Both:
    config, form = KINDS[kind]
    return Both.of(config, random_weights(config, form, has_biases=True), room)


@pytest.mark.parametrize(
    ("kind", "kv"), [*((kind, "int8") for kind in KINDS), *((kind, "fp16") for kind in FP16)]
)
def test_a_tree_over_the_end_of_a_chunk_and_what_is_decoded_above_it(kind: str, kv: str) -> None:
    models = both(kind)
    caches = models.caches(kv)
    models.read(caches, 0, text(62))
    assert models.compare(caches, Segment(0, 62, text(5, 1), TREE), keep=(0, 1, 3, 4))
    assert models.compare(caches, Segment(0, 66, text(1, 2)))


@pytest.mark.parametrize("kv", ["fp16", "int8"])
def test_a_tree_over_the_end_of_a_run(kv: str) -> None:
    models = both("plain")
    caches = models.caches(kv)
    models.read(caches, 0, text(127))
    assert models.compare(caches, Segment(0, 127, text(5, 1), TREE), keep=(0, 2))
    assert models.compare(caches, Segment(0, 129, text(2, 2)))


def test_two_sequences_from_nothing_in_either_order() -> None:
    """A prompt of the one beside a tree of the other, whose rows are the same where they stand elsewhere."""
    models = both("plain")
    caches, others = models.caches("int8", 2), models.caches("int8", 2)
    for pair in (caches, others):
        models.read(pair, 1, text(30, 4))
    prompt, tree = Segment(0, 0, text(3, 1)), Segment(1, 30, text(5, 2), TREE)
    assert models.compare(caches, prompt, tree)
    first = models.gpu.forward(Batch((prompt, tree)), others[1]).last
    second = models.gpu.forward(Batch((tree, prompt)), others[1]).last
    assert same(np.concatenate((second[5:], second[:5])), first)


def test_a_prefix_is_found_again_and_copied_when_written_to() -> None:
    models, tokens = both("plain"), text(70)
    caches = models.caches("int8", 2)
    assert [each.open(tokens) for each in caches] == [(0, 0), (0, 0)]
    models.read(caches, 0, tokens)
    for each in caches:
        each.close(0, tokens)
        assert each.open([*tokens[:66], 1, 2]) == (1, 66)  # of its last block a part
        assert each.open([*tokens, 5]) == (0, 70)
    assert models.compare(caches, Segment(1, 66, (1, 2)), keep=(0, 1))
    assert models.compare(caches, Segment(0, 70, (5,)))


def test_logits_and_the_largest_of_them() -> None:
    """Of the capped ones of a vocabulary that fills no tile; also where two are equal."""
    models = both("sandwich")
    hidden = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
    assert same(models.gpu.head(hidden), models.native.head(hidden))
    for k in (1, 5):
        ours, expected = (
            model.topk(hidden, k, log_normaliser=True) for model in (models.gpu, models.native)
        )
        assert np.array_equal(ours.ids, expected.ids)
        assert same(ours.values, expected.values)
        assert same(ours.log_normaliser, expected.log_normaliser)
    zeros = np.zeros((1, 64), np.float32)
    assert models.gpu.topk(zeros, 3).ids.tolist() == [[0, 1, 2]]
    assert models.gpu.topk(zeros, 1).ids.tolist() == [[0]]
    ids = np.array([1, 3, 40])
    assert same(models.gpu.head_weights(ids), models.native.head_weights(ids))
    parts = [model.head_part(ids) for model in (models.gpu, models.native)]
    assert same(*(part.logits(hidden) for part in parts))
    for wrong in ([], [-1], [models.config.vocab_size]):
        with pytest.raises(ValueError, match="some of the vocabulary"):
            models.gpu.head_part(np.array(wrong, np.int64))


def test_columns_have_the_order_of_their_file() -> None:
    """GPTQ's act-order in every matrix of a layer, the output's across heads."""
    models = Both.of(ORDERED, weights_of(ORDERED, READERS), room)
    caches = models.caches("int8")
    assert models.compare(caches, Segment(0, 0, text(5), TREE))


@pytest.mark.parametrize("is_tied", [False, True])
def test_weights_are_rounded_as_on_the_cpu_and_planned_to_the_byte(is_tied: bool) -> None:
    config = replace(SMALL, tied_head=is_tied)
    weights = random_weights(config, "bf16")
    options = {"quant": "int4", "head_bits": 4}
    models = Both.of(config, weights, room, **options)
    caches = models.caches("int8")
    assert models.compare(caches, Segment(0, 0, text(2)))
    hidden = np.random.default_rng(3).standard_normal((1, 64)).astype(np.float32)
    assert same(models.gpu.head(hidden), models.native.head(hidden))
    formats = {n: quantized_format(n, w.shape, w.format, "int4") for n, w in weights.items()}
    blanks = [BlankWeight(n, w.shape, formats[n], False) for n, w in weights.items()]
    assert room.blank(config, blanks, head_bits=4).nbytes() == models.gpu.nbytes()


@pytest.mark.slow
@pytest.mark.parametrize("base", [0, 61, 126])
def test_every_layer_of_smollm2(default_model, base: int) -> None:
    from forerun.model.loader import read_config, stored_weights
    from forerun.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(default_model)
    config, arch = read_config(checkpoint)
    models = Both.of(config, dict(stored_weights(checkpoint, arch, config)), room)
    caches = models.caches("fp16")
    models.read(caches, 0, np.random.default_rng(1).integers(100, 40000, base).tolist())
    assert models.compare(caches, Segment(0, base, (504, 3060, 28), (-1, 0, 0)))
