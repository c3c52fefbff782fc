"""The pictures, a function each: it draws into the axes it is given, and returns False if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerun.lab.bench.pass_costs import PassCosts
from forerun.lab.bench.plots.style import (
    INK,
    OURS,
    SHADE,
    SOFT,
    Look,
    Rows,
    log_ticks,
    looks,
    systems,
)
from forerun.lab.bench.summary import ALL, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CROWD = 8
"""More systems than this are compared over all prompts only: bands of each category would fill a page."""
WINDOW = 40
"""Pieces of a run: the loss of each is drawn as its mean, above the single steps."""


def speedups(axes: Axes, rows: Rows) -> bool:
    """Draw a band a category and a point with its interval a system; plain decoding is the line at 1."""
    series = systems(rows)
    if not series:
        return False
    if len(series) > CROWD:
        series = {
            n: [row for row in drawn if row["category"] == ALL] for n, drawn in series.items()
        }
    each = [row for drawn in series.values() for row in drawn]
    heights = {c: y for y, c in enumerate(dict.fromkeys([ALL, *(row["category"] for row in each)]))}
    step = 0.8 / len(series)
    for i, ((name, drawn), look) in enumerate(zip(series.items(), _looks(series), strict=True)):
        for row in drawn:
            y = heights[row["category"]] - 0.4 + (i + 0.5) * step
            value = row["speedup"]
            label = f"{name}  {value:.2f}x" if row["category"] == ALL else None
            axes.plot(_interval(row), [y, y], color=look["color"], linewidth=1.6, alpha=0.55)
            axes.plot(value, y, linestyle="", label=label, **look)
    for y in range(0, len(heights), 2):
        axes.axhspan(y - 0.5, y + 0.5, color=SHADE, linewidth=0, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    lows, highs = zip(*map(_interval, each), strict=True)
    log_ticks(axes, "x", min(0.9, 0.93 * min(lows)), max(2, 1.1 * max(highs)))
    axes.set_ylim(len(heights) - 0.5, -0.5)
    axes.set_yticks([*heights.values()], [category.replace("_", " ") for category in heights])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times the speed of plain decoding (1), with the 95 % interval over prompts")
    axes.grid(visible=False, axis="y")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(1.5 + 0.16 * len(heights) * max(len(series), 2))
    return True


def acceptance(axes: Axes, rows: Rows) -> bool:
    """Draw the share of drafts whose token at each depth was accepted."""
    series, longest = systems(rows), 0
    for (name, drawn), look in zip(series.items(), _looks(series), strict=True):
        rates = drawn[0].get("acceptance_by_depth") if drawn[0]["category"] == ALL else None
        if rates:
            last = max((depth for depth, rate in enumerate(rates, 1) if rate), default=1)
            rates = rates[: last + 1]  # one zero is enough
            axes.plot(range(1, len(rates) + 1), rates, label=name, **look)
            longest = max(longest, len(rates))
    if not longest:
        return False
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("kept, of the drafts that reach this depth")
    axes.set_xticks(range(1, 1 + longest, 1 + longest // 16))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return True


def curves(axes: Axes, costs: Sequence[PassCosts]) -> bool:
    """Draw v(k), a line a document: a draft of k - 1 tokens pays if its pass brings more than v tokens."""
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


def training(axes: Axes, history: Sequence[Mapping[str, float]]) -> bool:
    """Draw a training run: loss on the left axis, accept length (tau) on the right one."""
    steps = [line for line in history if "loss" in line]  # a trained drafter is measured first
    if not steps:
        return False
    tokens = np.array([line["tokens"] for line in steps]) / 1e6
    losses = np.array([line["loss"] for line in steps])
    axes.plot(tokens, losses, color=OURS[0], linewidth=0.5, alpha=0.35)
    parts = [part for part in np.array_split(np.arange(len(steps)), WINDOW) if len(part)]
    means = [(tokens[part].mean(), losses[part].mean()) for part in parts]
    axes.plot(*zip(*means, strict=True), color=OURS[0], linewidth=1.8, label="loss a token")
    axes.set_ylim(0.9 * losses.min(), 1.05 * float(np.quantile(losses, 0.98)))
    axes.set_xlabel("tokens learned, million")
    axes.set_ylabel("loss a token")
    measured = [(line["tokens"] / 1e6, line) for line in history if "tau" in line]
    if measured:
        right = axes.twinx()
        right.spines["right"].set_visible(True)
        right.grid(visible=False)
        right.set_ylabel("held-out tokens a pass (tau)")
        for name, color, label in (
            ("tau", OURS[1], "tau, greedy"),
            ("tau_sampled", OURS[2], "tau, temperature 1"),
        ):
            points = [(at, line[name]) for at, line in measured]
            right.plot(*zip(*points, strict=True), color=color, marker="o", label=label)
        best = max(measured, key=lambda each: each[1]["tau"] + each[1]["tau_sampled"])
        right.annotate(
            f"best: {best[1]['tau']:.2f} and {best[1]['tau_sampled']:.2f}",
            (best[0], best[1]["tau"]),
            (-8, -14),
            textcoords="offset points",
            ha="right",
            color=INK,
        )
    return True


def _looks(series: dict[str, list[Row]]) -> list[Look]:
    return looks(["peer" in drawn[0] for drawn in series.values()])


def _interval(row: Row) -> tuple[float, float]:
    """Of the speed-up; the value itself where too few prompts give none."""
    return row["speedup_lo"] or row["speedup"], row["speedup_hi"] or row["speedup"]


def _name(cost: PassCosts, among: Sequence[PassCosts]) -> str:
    """Who it is, and of which model if there are several."""
    name = cost.peer or "forerun"
    return name if len({p.model for p in among}) == 1 else f"{name}, {cost.model}"
