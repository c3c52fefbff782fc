"""What a model costs, from its config alone: bytes and operations, for the planner and the benchmarks."""

from __future__ import annotations

import math

from forerun.nn.config import ModelConfig, weight_shapes

_LOOKED_UP = ("embed", "positions")


def num_weights(config: ModelConfig) -> int:
    """Numbers in the weights, biases left out; a tied head counts once."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def weight_bytes(config: ModelConfig, bits_per_weight: float = 32.0) -> int:
    """Bytes of all weights at that many bits each."""
    return math.ceil(num_weights(config) * bits_per_weight / 8)


def kv_bytes_per_token(config: ModelConfig, bytes_per_number: float = 4.0) -> int:
    """Bytes of keys and values one position holds over all layers."""
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return math.ceil(numbers * bytes_per_number)


def flops_per_token(config: ModelConfig, context: int = 0) -> int:
    """Floating-point operations of one row that sees `context` positions, head included: two a multiply-add."""
    matrices = sum(
        math.prod(shape)
        for name, shape in weight_shapes(config).items()
        if len(shape) == 2 and name not in _LOOKED_UP
    )
    head = config.vocab_size * config.hidden_size if config.tied_head else 0
    seen = context if config.sliding_window is None else min(context, config.sliding_window)
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * seen
    return 2 * (matrices + head + attention)
