"""Who holds what: every head, channel and token once, nothing cut within a block, and one line where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.core.errors import LoadError
from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig
from forerun.model.random_model import random_config
from forerun.parallel.split import split
from forerun.weights.codes import Codes
from forerun.weights.rtn import requantize
from forerun.weights.stored import stored_floats
from tests.arrays import normal

SHAPES = [(9, 3, 64), (12, 2, 128), (14, 2, 64), (4, 1, 256), (16, 16, 32), (32, 8, 128)]
"""Query heads, kv heads and head dimensions of SmolLM2, Qwen2.5, Gemma 3 and others."""


def config_of(num_heads: int, num_kv_heads: int, head_dim: int) -> ModelConfig:
    return replace(
        random_config(vocab_size=1000),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=35 * 256,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_parts_hold_everything_once_and_queries_lie_with_their_keys(
    shape: tuple[int, int, int], size: int
) -> None:
    config = config_of(*shape)
    parts = split(config, size, head_unit=32, channel_unit=256)
    group = config.num_heads // config.num_kv_heads
    for name, total in (("heads", shape[0]), ("channels", 35 * 256), ("tokens", 1000)):
        assert [i for part in parts for i in getattr(part, name)] == list(range(total))
    for part in parts:
        assert {head // group for head in part.heads} == set(part.kv_heads)
        assert len(part.heads) % len(part.kv_heads) == 0
        assert part.channels.start % 256 == part.channels.stop % 256 == 0
        assert len(part.heads) <= len(parts[0].heads)
        assert len(part.channels) <= len(parts[0].channels)


def test_a_size_beyond_the_parts_is_refused_in_one_line() -> None:
    with pytest.raises(
        LoadError, match=r"--tensor-parallel-size 36 is more than .*35 parts by channels"
    ):
        split(config_of(64, 64, 128), 36, channel_unit=256)
    with pytest.raises(LoadError, match=r"--tensor-parallel-size 5 is more than"):
        split(config_of(4, 1, 256), 5)


def test_models_that_cannot_be_cut_are_refused_by_name() -> None:
    config = config_of(12, 2, 128)
    experts = LayerConfig(config.rope, experts=ExpertsConfig(4, 2, 32))
    for other, what in (
        (replace(config, layers=(experts, experts)), "experts"),
        (replace(config, qk_norm="whole"), "norms of q and k over all heads"),
        (replace(config, per_layer_width=32), "per-layer embeddings"),
    ):
        with pytest.raises(LoadError, match=f"has {what}, which tensor parallelism cannot cut"):
            split(other, 2)


@pytest.mark.parametrize("bits", [4, 8])
def test_columns_of_a_quantized_matrix_are_those_of_its_values(bits: int) -> None:
    stored = requantize(stored_floats("w", normal(5, 128, seed=1)), bits)
    assert np.array_equal(stored.columns(32, 96).dequantize(), stored.dequantize()[:, 32:96])
    with pytest.raises(LoadError, match="columns 16 to 64 of 'w' cut"):
        stored.columns(16, 64)


def test_columns_of_codes_with_zero_points_are_those_of_their_values() -> None:
    draw = np.random.default_rng(0)
    codes = Codes(
        draw.integers(0, 16, (3, 64)).astype(np.uint8),
        draw.random((3, 2), np.float32),
        zeros=draw.integers(0, 16, (3, 2)).astype(np.float32),
    )
    assert np.array_equal(codes.columns("w", 32, 64).values(), codes.values()[:, 32:])
    with pytest.raises(LoadError, match="cut a group of 32"):
        codes.columns("w", 8, 64)
