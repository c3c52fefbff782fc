"""What passes cost, drawn: the cost v(k) of k rows, and how near each width comes to what the machine can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.lab.bench.pass_costs import PassCosts
from forerun.lab.bench.plots.style import INK, SHADE, SOFT, log_ticks, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(axes: Axes, costs: Sequence[PassCosts]) -> bool:
    """v(k), a line a document; below it a draft of k - 1 tokens must not fall in tokens a pass. Logarithmic both."""
    if not costs:
        return False
    widest = max(cost.widest for cost in costs)
    highest = max(cost.v(cost.widest) for cost in costs)
    for cost, look in zip(costs, looks([bool(cost.peer) for cost in costs]), strict=True):
        values = [cost.v(k) for k in cost.ms]
        axes.plot([*cost.ms], values, label=f"{_name(cost, costs)}  {values[-1]:.1f}", **look)
    log_ticks(axes, "x", 0.95, 1.1 * widest, [2**i for i in range(12)])
    log_ticks(axes, "y", 0.9, 1.3 * highest)
    limit = min(widest, 1.3 * highest)
    axes.plot([1, limit], [1, limit], color=SOFT, linestyle=":", label="k passes of one row")
    axes.axhline(1, color=SOFT, linestyle="--", label="free")
    axes.set_xlabel("k: rows of a pass")
    axes.set_ylabel("v(k): times a pass of one row")
    return True


def roofline(axes: Axes, costs: Sequence[PassCosts]) -> bool:
    """Operations a second over operations a byte of weights, a point a width, below what reading the weights allows."""
    tops, across = [], []
    for cost, look in zip(costs, looks([False] * len(costs)), strict=True):
        flops, bandwidth, weights = cost.mflop_row, cost.bandwidth_gb_s, cost.weights_mb
        if flops is None or bandwidth is None or weights is None:
            continue  # a peer's times alone
        points = [(k * flops / weights, k * flops / ms) for k, ms in cost.ms.items()]
        best = max(rate for _, rate in points)
        knee, right = best / bandwidth, 2 * points[-1][0]
        left = 0.6 * min(knee, points[0][0])
        corners = [left, knee, max(right, knee)], [left * bandwidth, best, best]
        axes.plot(*corners, color=look["color"], linewidth=1, linestyle=":")
        axes.fill_between(corners[0], corners[1], color=SHADE, linewidth=0, zorder=0)
        note = f"at most {best:.0f} Gop/s seen,\nmemory gives {bandwidth:.1f} GB/s"
        name = f"{_name(cost, costs)}: {note}"
        axes.scatter(*zip(*points, strict=True), label=name, zorder=3, **look)
        for k, point in zip(cost.ms, points, strict=True):
            axes.annotate(
                f"{k}", point, (0, -6), textcoords="offset points", ha="center", va="top",
                fontsize=8, color=INK,
            )  # fmt: skip
        tops += [left * bandwidth, best]
        across += [left, right]
    if not tops:
        return False
    log_ticks(axes, "x", min(across), max(across))
    log_ticks(axes, "y", 0.7 * min(tops), 1.6 * max(tops))
    axes.set_xlabel("operations a byte of weights (a number beside a point: rows of the pass)")
    axes.set_ylabel("Gop/s, a multiply-add being two")
    return True


def _name(cost: PassCosts, among: Sequence[PassCosts]) -> str:
    """Who it is, and of which model if there are several."""
    name = cost.peer or "forerun"
    return name if len({p.model for p in among}) == 1 else f"{name}, {cost.model}"
