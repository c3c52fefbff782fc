"""A mixture of experts: a router chooses for each row, experts read their rows, a row adds up its own in order.

As in csrc/model/mlp.cpp: of equal scores the first are chosen; what a row's experts give is added in ascending order,
whatever other rows have chosen. Rows are sorted by expert, so that an expert's weights are read once.

R rows, A active experts of a row, E experts, D hidden width, F width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from forerun.gpu.matrices import ROWS, Matrix, Pairs, Rows
from forerun.gpu.numbers import LAUNCH
from forerun.gpu.routing import add_pairs, list_pairs, route
from forerun.model.config import ExpertsConfig

_ADDED_TOGETHER = 256
"""Columns that a program of `add_pairs` adds up."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer, one below the other, and their router."""

    shape: ExpertsConfig
    router: Matrix
    gate: Matrix | None
    up: Matrix
    down: Matrix
    choice_bias: Tensor | None

    @property
    def readers(self) -> tuple[Matrix, ...]:
        """What reads the rows that come in."""
        gate = () if self.gate is None else (self.gate,)
        return (self.router, *gate, self.up)

    def choose(self, normed: Rows, num: int, multiplier: float, room: Room) -> tuple[Pairs, Tensor]:
        """Return the pairs of rows and experts, and their weights times a multiplier (pairs,)."""
        count, active = self.shape.num_experts, self.shape.num_active
        logits, weights = room("logits of experts", ROWS, count), room("weights", ROWS, active)
        chosen = room("chosen", ROWS, active, dtype=torch.int32)
        lists = room("pairs", count, ROWS, dtype=torch.int32)
        self.router.multiply(normed, num, logits)
        bias = logits if self.choice_bias is None else self.choice_bias
        route[(num,)](
            logits, bias, chosen, weights, self.shape.sum_offset, self.shape.scale, multiplier,
            NUM=count, WIDE=triton.next_power_of_2(count), ACTIVE=active,
            IS_SIGMOID=self.shape.scoring == "sigmoid", HAS_BIAS=self.choice_bias is not None,
            IS_RENORMALIZED=self.shape.renormalized, GROUPS=self.shape.num_groups,
            ACTIVE_GROUPS=self.shape.num_active_groups,
            GROUP_BEST=min(self.shape.group_best, count // self.shape.num_groups), **LAUNCH,
        )  # fmt: skip
        list_pairs[(count,)](
            chosen, lists, num, ACTIVE=active, WIDE=triton.next_power_of_2(num * active), MOST=ROWS,
            **LAUNCH,
        )  # fmt: skip
        return Pairs(lists, active), weights

    def multiply(
        self, normed: Rows, pairs: Pairs, num: int, activate: Callable[[Tensor], Rows], room: Room
    ) -> Tensor:
        """Return what each pair's expert gives (pairs, D); `activate` is given its [gate | up] (pairs, 2 F) or up."""
        inner, num_pairs = self.shape.intermediate_size, ROWS * pairs.num_active
        parts = [part for part in (self.gate, self.up) if part is not None]
        up = room("up of experts", num_pairs, len(parts) * inner)
        for i, part in enumerate(parts):
            part.multiply(normed, num, up[:, i * inner :], pairs=pairs)
        given = room("given", num_pairs, self.down.num_out // pairs.num_experts)
        self.down.multiply(activate(up), num, given, pairs=pairs, reads_pairs=True)
        return given


def add_experts(x: Tensor, given: Tensor, weights: Tensor, num: int) -> None:
    """Add to rows x (ROWS, D) what their experts give, in order."""
    active, width = weights.shape[1], x.shape[1]
    add_pairs[(num, triton.cdiv(width, _ADDED_TOGETHER))](
        x, given, weights, D=width, ACTIVE=active, BLOCK=_ADDED_TOGETHER, **LAUNCH
    )


Room = Callable[..., Tensor]
"""Returns a buffer by name and shape: `layers.Buffers.floats`."""
