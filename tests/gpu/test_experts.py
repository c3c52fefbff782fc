"""Experts of a row are chosen and added up as on the CPU, to the bit, whatever other rows choose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.batch import Batch, Segment
from forerun.gpu import load as room
from forerun.model.config import ExpertsConfig, LayerConfig
from tests.gpu.oracle import Both, same
from tests.native.models import EXPERTS, GATED, ROPE, SINKS, random_weights, text

TREE = (-1, 0, 0, 1, 3)


def mixture(**options: object) -> ExpertsConfig:
    return ExpertsConfig(**{"num_experts": 6, "num_active": 2, "intermediate_size": 32, **options})


def model(experts: ExpertsConfig, *, has_mlp: bool = False):
    layer = LayerConfig(ROPE, experts=experts, has_mlp=has_mlp)
    return replace(GATED, num_layers=1, num_heads=2, num_kv_heads=1, layers=(layer,))


BIASED = mixture(has_choice_bias=True, renormalized=False)
SIGMOID = mixture(scoring="sigmoid", has_choice_bias=True, sum_offset=1e-20, scale=2.5)
KINDS = {
    "olmoe, granite": (EXPERTS, "q4_1"),
    "gpt-oss": (replace(SINKS, num_layers=1, layers=SINKS.layers[:1]), "mxfp4"),
    "sigmoid with a bias": (model(SIGMOID, has_mlp=True), "q8_0"),
    "softmax with a bias": (model(BIASED), "q4_0"),
    "groups by their best": (model(mixture(num_groups=3, num_active_groups=2)), "q4_0"),
    "groups by their two best": (
        model(replace(SIGMOID, num_groups=2, num_active_groups=1, group_best=2)),
        "q8_0",
    ),
    "floats": (model(mixture(num_experts=3)), "bf16"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_has_the_bits_of_the_cpu(kind: str) -> None:
    config, form = KINDS[kind]
    models = Both.of(config, random_weights(config, form, has_biases=True), room)
    caches = models.caches("int8")
    models.read(caches, 0, text(20))
    assert models.compare(caches, Segment(0, 20, text(5, 1), TREE), keep=(0, 1, 3, 4))
    assert models.compare(caches, Segment(0, 24, text(1, 2)))


def test_rows_of_one_expert_fill_more_than_a_tile() -> None:
    """A prompt of 40 rows, of which an expert has up to all; alone a row has the same bits."""
    config = model(mixture(num_experts=2))
    models = Both.of(config, random_weights(config, "q4_0"), room)
    caches = models.caches("int8", 2)
    assert models.compare(caches, Segment(0, 0, text(40)), keep=range(39))
    together = models.gpu.forward(
        Batch((Segment(1, 0, text(20, 3)), Segment(0, 39, text(40)[39:]))), caches[1]
    )
    alone = models.gpu.forward(Batch((Segment(0, 39, text(40)[39:]),)), caches[1])
    assert same(together.last[20:], alone.last)
