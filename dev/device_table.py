"""Each method's tokens a pass over what a pass costs where rows are free, for `dev.readme_table`.

A file like `benchmarks/2026-11-29-devices/methods.json` has what was counted: tokens a pass, the rows of a pass, and
what its drafts take in plain passes, by their bytes. Two cores are measured, in each model's own shape. The others are
computed in the shape of an 8B (4.4 GB, 1,024 tokens of context): `dev.row_prices` has 16 cores, cards are below.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dev.row_prices import MACHINES
from forerun._native import CostCurve
from forerun.lab.output import markdown_table

TILE = 16
"""Rows that a card's kernels compute together."""


class Card(NamedTuple):
    """Milliseconds of an 8B's pass: reading its bytes, each tile's instructions, and launches."""

    memory: float
    tile: float
    launches: float

    def v(self, rows: float) -> float:
        """Return the cost of a pass of so many rows, in passes of one."""
        return self._ms(rows) / self._ms(1)

    def _ms(self, rows: float) -> float:
        return max(self.memory, self.tile * -(-rows // TILE)) + self.launches


CARDS = {"RTX 4090": Card(5.49, 1.38, 0.65), "H100": Card(1.65, 1.97, 0.65)}
"""At 80 % of their memory's speed; 40 warp instructions beside each integer product, at 70 % of what they can issue;
2 us a launch inside a graph. One tile takes an H100 longer than the bytes do."""
CORES = "16 cores"


def table(path: Path) -> str:
    """Return the table of a file, in Markdown."""
    data = json.loads(path.read_text(encoding="utf-8"))
    measured = {
        model: CostCurve({int(rows): ms for rows, ms in costs.items()})
        for model, costs in data["measured"].items()
    }
    devices: dict[str, Callable[[float], float]] = {CORES: MACHINES[CORES].passes.v}
    devices |= {name: card.v for name, card in CARDS.items()}
    lines = []
    for each in data["methods"]:
        costs = [measured[each["model"]].v, *devices.values()]
        cells = [each["name"], each["model"], f"{each['tau']:.2f}", f"{each['rows']:.1f}"]
        cells += [_speedup(each, cost) for cost in costs]
        lines.append([*cells, each["paper"] or "–"])
    head = ["method", "model", "tokens a pass", "rows", "two cores", *devices, "its authors"]
    return markdown_table(head, lines, num_left=2)


def _speedup(method: dict[str, Any], cost: Callable[[float], float]) -> str:
    return f"{method['tau'] / (cost(method['rows']) + method['draft']):.2f}x"
