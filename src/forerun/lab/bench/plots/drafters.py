"""What drafters bring, drawn: speed-up, acceptance, what tau turns into, what a row brings. A function a picture.

Each draws into the axes it is given and says False if there is nothing to draw. See `report.py` for the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forerun.lab.bench.pass_costs import PassCosts
from forerun.lab.bench.plots.style import (
    GRID,
    INK,
    SHADE,
    SOFT,
    Look,
    Rows,
    log_ticks,
    looks,
    systems,
)
from forerun.lab.bench.report import rows_a_pass
from forerun.lab.bench.summary import ALL, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = 3
"""So many settings of one drafter make a curve of tau against rows."""
CROWD = 8
"""More systems than this are compared over all prompts only: bands of each category would fill a page."""


def speedups(axes: Axes, rows: Rows) -> bool:
    """A band a category, a point with its interval a system; plain decoding is the line at 1."""
    series = systems(rows)
    if not series:
        return False
    if len(series) > CROWD:
        series = {n: [row for row in own if row["category"] == ALL] for n, own in series.items()}
    each = [row for own in series.values() for row in own]
    places = {c: y for y, c in enumerate(dict.fromkeys([ALL, *(row["category"] for row in each)]))}
    step = 0.8 / len(series)
    for i, ((name, own), look) in enumerate(zip(series.items(), _looks(series), strict=True)):
        for row in own:
            y = places[row["category"]] - 0.4 + (i + 0.5) * step
            value = row["speedup"]
            label = f"{name}  {value:.2f}x" if row["category"] == ALL else None
            axes.plot(_interval(row), [y, y], color=look["color"], linewidth=1.6, alpha=0.55)
            axes.plot(value, y, linestyle="", label=label, **look)
    for y in range(0, len(places), 2):
        axes.axhspan(y - 0.5, y + 0.5, color=SHADE, linewidth=0, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    lows, highs = zip(*map(_interval, each), strict=True)
    log_ticks(axes, "x", min(0.9, 0.93 * min(lows)), max(2, 1.1 * max(highs)))
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_yticks([*places.values()], [place.replace("_", " ") for place in places])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times the speed of plain decoding (1), with the 95 % interval over prompts")
    axes.grid(visible=False, axis="y")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(1.5 + 0.16 * len(places) * max(len(series), 2))
    return True


def acceptance(axes: Axes, rows: Rows) -> bool:
    """Share of drafts whose token at each depth was kept."""
    series, longest = systems(rows), 0
    for (name, own), look in zip(series.items(), _looks(series), strict=True):
        rates = own[0].get("acceptance_by_depth") if own[0]["category"] == ALL else None
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


def taus(axes: Axes, rows: Rows) -> bool:
    """Speed-up over tau, a point a category; the distance to the diagonal is what drafting costs."""
    series = {name: own for name, own in systems(rows).items() if "peer" not in own[0]}
    if not series:
        return False
    each = [row for own in series.values() for row in own]
    limit = max(1.5, 1.1 * max(row["tau"] for row in each))
    lowest = min(0.8, 0.93 * min(row["speedup"] for row in each))
    log_ticks(axes, "x", 0.95, limit)
    log_ticks(axes, "y", lowest, limit)
    axes.plot([1, limit], [1, limit], color=SOFT, linestyle=":", label="drafting costs nothing")
    axes.axhspan(lowest, 1, color=SHADE, linewidth=0, zorder=0, label="slower than plain")
    for (name, own), look in zip(series.items(), _looks(series), strict=True):
        across, up = zip(*((row["tau"], row["speedup"]) for row in own), strict=True)
        sizes = [64 if row["category"] == ALL else 22 for row in own]
        axes.scatter(across, up, s=sizes, label=name, zorder=3, **look)
    for category in dict.fromkeys(row["category"] for row in each):
        points = sorted((row["tau"], row["speedup"]) for row in each if row["category"] == category)
        axes.plot(*zip(*points, strict=True), color=GRID, linewidth=3, zorder=1)
        axes.annotate(
            category.replace("_", " "), points[-1], (6, 4), textcoords="offset points", fontsize=8
        )
    axes.set_xlabel("tau: tokens a pass of the model")
    axes.set_ylabel("speed-up over plain decoding")
    return True


def costs(axes: Axes, rows: Rows, cost: PassCosts | None) -> bool:
    """Tau over the rows of a pass, a point a system. What lies above v(k) is faster than plain if drafting is free."""
    points = {
        name: (width, row["tau"])
        for name, own in systems(rows).items()
        for row in own
        if row["category"] == ALL and (width := rows_a_pass(row)) is not None
    }
    if not points:
        return False
    widest = 1.6 * max(x for x, _ in points.values())
    log_ticks(axes, "x", 0.95, widest)
    log_ticks(axes, "y", 0.9, 1.25 * max(y for _, y in points.values()))
    if cost is not None:
        across = np.geomspace(1, widest, 200)
        border = [cost.v(x) for x in across]
        label = f"slower than plain by\nthe passes of {cost.model}"
        axes.fill_between(across, 0.01, border, color=SHADE, linewidth=0, zorder=0, label=label)
        axes.plot(across, border, color=SOFT, linewidth=1.2)
    axes.plot(1, 1, "o", color=INK, label="plain")
    for (name, point), look in zip(points.items(), looks([False] * len(points)), strict=True):
        axes.plot(*point, linestyle="", label=name, **look)
    axes.set_xlabel("rows of a pass, on average")
    axes.set_ylabel("tau: tokens a pass")
    return True


def scaling(axes: Axes, rows: Rows) -> bool:
    """Tau over the rows of a pass for the settings of one drafter, with a line through them for each category.

    Fu et al. (arXiv 2402.02057): tokens a step grow linearly with the logarithm of what a step computes.
    """
    families: dict[str, list[Row]] = {}
    for name, own in systems(rows).items():
        families.setdefault(name.partition(":")[0], []).extend(own)
    drafter, family = max(families.items(), key=lambda item: len(item[1]), default=("", []))
    points: dict[str, list[tuple[float, float]]] = {}
    for row in family:
        if (width := rows_a_pass(row)) is not None:
            points.setdefault(row["category"], []).append((width, row["tau"]))
    if len(points) > 1:
        del points[ALL]
    if min(map(len, points.values()), default=0) < SETTINGS:
        return False
    for (category, found), look in zip(points.items(), looks([False] * len(points)), strict=True):
        across, up = np.array(sorted(found)).T
        axes.plot(across, up, linestyle="", **look)
        if across[-1] > across[0]:
            slope, start = np.polyfit(np.log2(across), up, 1)
            label = f"{category.replace('_', ' ')}  {slope:+.2f} a doubling"
            axes.plot(across, start + slope * np.log2(across), color=look["color"], label=label)
    widths = [x for found in points.values() for x, _ in found]
    log_ticks(axes, "x", 0.8 * min(widths), 1.25 * max(widths))
    axes.set_ylim(1, None)
    axes.set_xlabel(f"rows of a pass, on average, for {len(found)} settings of {drafter}")
    axes.set_ylabel("tau: tokens a pass")
    return True


def _looks(series: dict[str, list[Row]]) -> list[Look]:
    return looks(["peer" in own[0] for own in series.values()])


def _interval(row: Row) -> tuple[float, float]:
    """Of the speed-up; the value itself where too few prompts give none."""
    return row["speedup_lo"] or row["speedup"], row["speedup_hi"] or row["speedup"]
