"""What a pass has to do at least, by arithmetic: the bytes of weights that its rows touch, and their multiply-adds.

Keys and values are left out: this is a pass above a short context. The recurrent states of one sequence are read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.model.backends.base import BlankWeight
from forerun.model.config import ExpertsConfig, ModelConfig, state_size, weight_shapes

_LOOKED_UP = frozenset({"embed", "positions", "per_layer_embed"})
"""Tables of which a row of the pass reads one row."""


@dataclass(frozen=True, slots=True)
class PassWork:
    """Of one pass."""

    nbytes: float
    multiply_adds: float

    def seconds(self, bytes_s: float, multiply_adds_s: float) -> float:
        """Return the time on a machine that reads while it multiplies."""
        return max(self.nbytes / bytes_s, self.multiply_adds / multiply_adds_s)


def expected_experts(experts: ExpertsConfig, num_rows: int) -> float:
    """Return how many experts that many rows touch on average, if each row chose by itself.

    Rows of one text, above all siblings of a tree, share more.
    """
    missed = 1 - experts.num_active / experts.num_experts
    return experts.num_experts * (1 - missed**num_rows)


def pass_work(weights: Sequence[BlankWeight], config: ModelConfig, num_rows: int) -> PassWork:
    """Return the work of a pass of that many rows over a model's weights, as they are stored."""
    nbytes, multiply_adds = 4.0 * state_size(config), 2.0 * num_rows * state_size(config)
    for name, shape, format, _ in weights:
        size = math.prod(shape)
        read, used = share_read(name, config, num_rows), float(num_rows)
        if _is_looked_up(name, config):
            used = 0.0
        elif (experts := _experts_of(name, config)) is not None:
            used = num_rows * experts.num_active / experts.num_experts
        nbytes += read * size * format.bits_per_weight / 8
        multiply_adds += used * size if len(shape) == 2 else 0
    return PassWork(nbytes, multiply_adds)


def share_read(name: str, config: ModelConfig, num_rows: int) -> float:
    """Return the share of a weight, by its canonical name, that a pass of that many rows reads."""
    if _is_looked_up(name, config):
        return min(1.0, num_rows / weight_shapes(config)[name][0])
    experts = _experts_of(name, config)
    return 1.0 if experts is None else expected_experts(experts, num_rows) / experts.num_experts


def _is_looked_up(name: str, config: ModelConfig) -> bool:
    return name in _LOOKED_UP and not (name == "embed" and config.tied_head)


def _experts_of(name: str, config: ModelConfig) -> ExpertsConfig | None:
    return config.layer(int(name.split(".")[1])).experts if ".expert_" in name else None
