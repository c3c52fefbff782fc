"""What a pass reads of the weights: of tables the rows that are looked up, of experts the chosen ones, else all."""

from __future__ import annotations

from forerun.model.config import ExpertsConfig, ModelConfig
from forerun.model.shapes import weight_shapes

_LOOKED_UP = frozenset({"embed", "positions", "per_layer_embed"})
"""Tables of which a row of the pass reads one row."""


def expected_experts(experts: ExpertsConfig, num_rows: int) -> float:
    """Return how many experts that many rows touch on average, if each row chose by itself.

    Rows of one text, above all siblings of a tree, share more.
    """
    missed = 1 - experts.num_active / experts.num_experts
    return experts.num_experts * (1 - missed**num_rows)


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
