"""What a model costs, from its config alone."""

from __future__ import annotations

import math

from forerun.nn.config import ModelConfig, weight_shapes

_LOOKED_UP = ("embed", "positions")


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
