"""Costs against what a real model of that config holds."""

from __future__ import annotations

import math
from dataclasses import replace

from forerun.nn import cost
from forerun.nn.config import ModelConfig, RopeConfig
from tests.nn.tiny import random_decoder

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
SMALL = replace(SMOLLM2, vocab_size=61, hidden_size=64, intermediate_size=96, num_layers=2)


def test_smollm2_has_135_million_weights() -> None:
    assert cost.num_weights(SMOLLM2) == 134_515_008
    assert cost.weight_bytes(SMOLLM2, 4.5) == math.ceil(134_515_008 * 4.5 / 8)


def test_bytes_are_those_of_a_decoder_and_its_cache() -> None:
    for config in (SMALL, replace(SMALL, tied_head=False)):
        decoder = random_decoder(config)
        assert cost.weight_bytes(config) == decoder.nbytes()
        cache = decoder.new_cache(1, 128)
        assert cost.kv_bytes_per_token(config) * 128 == cache.nbytes()


def test_flops_are_two_a_weight_and_grow_with_the_context() -> None:
    norms = (2 * SMOLLM2.num_layers + 1) * SMOLLM2.hidden_size
    assert cost.flops_per_token(SMOLLM2) == 2 * (cost.num_weights(SMOLLM2) - norms)
    untied = replace(SMOLLM2, tied_head=False)
    assert cost.flops_per_token(untied) == cost.flops_per_token(SMOLLM2)
    seen = cost.flops_per_token(SMOLLM2, 100) - cost.flops_per_token(SMOLLM2)
    assert seen == 100 * 4 * SMOLLM2.num_layers * 576
    windowed = replace(SMOLLM2, sliding_window=10)
    assert cost.flops_per_token(windowed, 100) == cost.flops_per_token(SMOLLM2, 10)
