"""Operations, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig, RopeConfig
from forerun.model.shapes import flops_per_token, row_share, weight_shapes

SMOLLM2 = ModelConfig(
    family="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rope=RopeConfig(100000.0, 64),
    tied_head=True,
)


def test_flops_are_two_a_weight_and_grow_with_the_context() -> None:
    num_weights = sum(map(math.prod, weight_shapes(SMOLLM2).values()))
    assert num_weights == 134_515_008
    norms = (2 * SMOLLM2.num_layers + 1) * SMOLLM2.hidden_size
    assert flops_per_token(SMOLLM2) == 2 * (num_weights - norms)
    untied = replace(SMOLLM2, tied_head=False)
    assert flops_per_token(untied) == flops_per_token(SMOLLM2)
    seen = flops_per_token(SMOLLM2, 100) - flops_per_token(SMOLLM2)
    assert seen == 100 * 4 * SMOLLM2.num_layers * 576
    windowed = replace(SMOLLM2, sliding_window=10)
    assert flops_per_token(windowed, 100) == flops_per_token(SMOLLM2, 10)


def test_of_experts_a_row_reads_those_it_chooses() -> None:
    assert row_share(SMOLLM2) == 1.0
    experts = ExpertsConfig(num_experts=8, num_active=2, intermediate_size=1536)
    layer = LayerConfig(SMOLLM2.rope, None, experts, has_mlp=False)
    mixture = replace(SMOLLM2, layers=(layer,) * SMOLLM2.num_layers)
    one_expert = 3 * 1536 * 576 * 30
    router, norms = 8 * 576 * 30, 61 * 576
    held = sum(map(math.prod, weight_shapes(mixture).values())) - norms
    dense = held - 8 * one_expert - router
    assert row_share(mixture) == (dense + router + 2 * one_expert) / held
