"""What passes cost, drawn: the cost v(k) of k rows, and how near each width comes to what the machine can do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from forerun.bench.pass_costs import PassCosts
from forerun.bench.plots.style import (
    INK,
    MARKERS,
    OURS,
    PEERS,
    RIGHT,
    SHADE,
    SOFT,
    log_ticks,
    name_points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(axes: Axes, costs: Sequence[PassCosts]) -> bool:
    """v(k), a line a document; below it a draft of k - 1 tokens must not fall in tokens a pass. Logarithmic both."""
    if not costs:
        return False
    ours, peers, names = cycle(OURS), cycle(PEERS), []
    widest = max(cost.widest for cost in costs)
    highest = max(cost.v(cost.widest) for cost in costs)
    for cost, marker in zip(costs, cycle(MARKERS), strict=False):
        colour = next(ours if cost.peer is None else peers)
        points = [(k, cost.v(k)) for k in cost.ms]
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, markersize=5)
        names.append((f"{_name(cost, costs)}  {points[-1][1]:.1f}", points[-1], colour))
    log_ticks(axes, "x", 0.95, 1.7 * widest, [2**i for i in range(12)])
    log_ticks(axes, "y", 0.9, 1.3 * highest)
    limit = min(widest, 1.3 * highest)
    axes.plot([1, limit], [1, limit], color=SOFT, linewidth=1, linestyle=":")
    told: dict[str, Any] = {"fontsize": 8, "color": SOFT, "ha": "right"}
    axes.text(0.8 * limit, 0.83 * limit, "as expensive as k passes of one row ", **told)
    axes.axhline(1, color=SOFT, linewidth=1, linestyle=":")
    axes.text(1.6 * widest, 0.99, "free", va="top", **told)
    axes.set_xlabel("k: rows of a pass")
    axes.set_ylabel("v(k): times a pass of one row")
    axes.grid()
    name_points(axes, names, places=RIGHT)
    return True


def roofline(axes: Axes, costs: Sequence[PassCosts]) -> bool:
    """Operations a second over operations a byte of weights, a point a width, below what reading the weights allows."""
    tops, across = [], []
    for cost, colour, marker in zip(costs, cycle(OURS), cycle(MARKERS), strict=False):
        flops, bandwidth, weights = cost.mflop_row, cost.bandwidth_gb_s, cost.weights_mb
        if flops is None or bandwidth is None or weights is None:
            continue  # a peer's times alone
        points = [(k * flops / weights, k * flops / ms) for k, ms in cost.ms.items()]
        best = max(rate for _, rate in points)
        knee, right = best / bandwidth, 2 * points[-1][0]
        left = 0.6 * min(knee, points[0][0])
        corners = [left, knee, max(right, knee)], [left * bandwidth, best, best]
        axes.plot(*corners, color=colour, linewidth=1, linestyle=":")
        axes.fill_between(corners[0], corners[1], color=SHADE, linewidth=0, zorder=0)
        axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, zorder=3)
        for k, point in zip(cost.ms, points, strict=True):
            axes.annotate(
                f"{k}", point, (0, -6), textcoords="offset points", ha="center", va="top",
                fontsize=8, color=INK,
            )  # fmt: skip
        told = f"at most {best:.0f} Gop/s seen, memory gives {bandwidth:.1f} GB/s"
        name = _name(cost, costs)
        axes.text(right, best * 1.06, f"{name}: {told}", ha="right", fontsize=8, color=colour)
        tops += [left * bandwidth, best]
        across += [left, right]
    if not tops:
        return False
    log_ticks(axes, "x", min(across), max(across))
    log_ticks(axes, "y", 0.7 * min(tops), 1.6 * max(tops))
    axes.set_xlabel("operations a byte of weights (a number beside a point: rows of the pass)")
    axes.set_ylabel("Gop/s, a multiply-add being two")
    axes.grid()
    return True


def _name(cost: PassCosts, among: Sequence[PassCosts]) -> str:
    """Who it is, and of which model if there are several."""
    name = cost.peer or "forerun"
    return name if len({p.model for p in among}) == 1 else f"{name}, {cost.model}"
