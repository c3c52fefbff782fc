"""What drafters bring, drawn: speed-up, acceptance, what tau turns into, what a row brings. A function a picture.

Each draws into the axes it is given and says False if there is nothing to draw. See `report.py` for the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from forerun.bench.pass_costs import PassCosts
from forerun.bench.plots.style import (
    GRID,
    INK,
    MARKERS,
    OURS,
    RIGHT,
    SHADE,
    SOFT,
    Point,
    Rows,
    log_ticks,
    looks,
    name_points,
    short,
    systems,
)
from forerun.bench.report import rows_a_pass
from forerun.bench.summary import ALL, Row

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
    found = {str(row["category"]) for own in series.values() for row in own} - {ALL}
    order = dict.fromkeys(str(row["category"]) for row in rows if row["category"] in found)
    places = {category: y for y, category in enumerate([ALL, *order])}
    step, look = 0.8 / len(series), looks(series)
    for i, (name, own) in enumerate(series.items()):
        colour, marker = look[name]
        for row in own:
            y = places[str(row["category"])] - 0.4 + (i + 0.5) * step
            value = _number(row, "speedup")
            low, high = (_number(row, key, "speedup") for key in ("speedup_lo", "speedup_hi"))
            axes.plot([low, high], [y, y], color=colour, linewidth=1.6, alpha=0.55)
            axes.plot(value, y, marker, color=colour, markersize=5.5)
            if row["category"] == ALL:
                axes.annotate(
                    f"{short(name)}  {value:.2f}x", (high, y), (7, 0), textcoords="offset points",
                    va="center", fontsize=8, color=colour, weight="bold",
                )  # fmt: skip
    for y in range(0, len(places), 2):
        axes.axhspan(y - 0.5, y + 0.5, color=SHADE, linewidth=0, zorder=0)
    axes.axvline(1, color=INK, linewidth=1)
    lows = [_number(row, "speedup_lo", "speedup") for own in series.values() for row in own]
    highs = [_number(row, "speedup_hi", "speedup") for own in series.values() for row in own]
    log_ticks(axes, "x", min(0.9, 0.93 * min(lows)), max(2, 1.2 * max(highs)))
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_yticks([*places.values()], [place.replace("_", " ") for place in places])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times the speed of plain decoding (1), with the 95 % interval over prompts")
    axes.grid(axis="x")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(1.5 + 0.16 * len(places) * max(len(series), 2))
    return True


def acceptance(axes: Axes, rows: Rows) -> bool:
    """Share of drafts whose token at each depth was kept."""
    series = systems(rows)
    drafted = {
        name: own[0]["acceptance_by_depth"]
        for name, own in series.items()
        if own[0]["category"] == ALL and own[0].get("acceptance_by_depth")
    }
    if not drafted:
        return False
    names, longest, look = [], 1, looks(series)
    for name, all_rates in drafted.items():
        assert isinstance(all_rates, list)
        colour, marker = look[name]
        last = max((depth for depth, rate in enumerate(all_rates, 1) if rate), default=1)
        rates = all_rates[: last + 1]  # one zero is enough
        depths = range(1, len(rates) + 1)
        axes.plot(depths, rates, marker=marker, color=colour, markersize=5)
        names.append((short(name), (len(rates), rates[-1]), colour))
        longest = max(longest, len(rates))
    axes.set_xlim(0.7, 1.2 * longest + 0.3)
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("kept, of the drafts that reach this depth")
    axes.set_xticks(range(1, 1 + longest, 1 + longest // 16))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid()
    name_points(axes, names, places=RIGHT)
    return True


def taus(axes: Axes, rows: Rows) -> bool:
    """Speed-up over tau, a point a category; the distance to the diagonal is what drafting costs."""
    series = {name: own for name, own in systems(rows).items() if "peer" not in own[0]}
    if not series:
        return False
    each = [row for own in series.values() for row in own]
    limit = max(1.5, 1.1 * max(_number(row, "tau") for row in each))
    lowest = min(0.8, 0.93 * min(_number(row, "speedup") for row in each))
    log_ticks(axes, "x", 0.95, limit)
    log_ticks(axes, "y", lowest, limit)
    axes.plot([1, limit], [1, limit], color=SOFT, linewidth=1, linestyle=":")
    axes.text(
        0.8 * limit, 0.86 * limit, "drafting costs nothing ", ha="right", fontsize=8, color=SOFT
    )
    axes.axhspan(lowest, 1, color=SHADE, linewidth=0, zorder=0)
    axes.text(limit, 0.985, "slower than plain ", ha="right", va="top", fontsize=8, color=SOFT)
    names: list[tuple[str, Point, str]] = []
    for name, (colour, marker) in looks(series).items():
        own = series[name]
        points = [(_number(row, "tau"), _number(row, "speedup")) for row in own]
        sizes = [64 if row["category"] == ALL else 22 for row in own]
        across, up = zip(*points, strict=True)
        axes.scatter(across, up, s=sizes, marker=marker, color=colour, label=short(name), zorder=3)
    for category in dict.fromkeys(str(row["category"]) for row in each):
        same = [row for row in each if row["category"] == category]
        points = sorted((_number(row, "tau"), _number(row, "speedup")) for row in same)
        axes.plot(*zip(*points, strict=True), color=GRID, linewidth=3, zorder=1)
        names.append((category.replace("_", " "), points[-1], INK))
    axes.set_xlabel("tau: tokens a pass of the model")
    axes.set_ylabel("speed-up over plain decoding")
    axes.grid()
    axes.legend(loc="upper left")
    name_points(axes, names, [(_number(row, "tau"), _number(row, "speedup")) for row in each])
    return True


def costs(axes: Axes, rows: Rows, cost: PassCosts | None) -> bool:
    """Tau over the rows of a pass, a point a system. What lies above v(k) is faster than plain if drafting is free."""
    points = {
        name: _place(row)
        for name, own in systems(rows).items()
        for row in own
        if row["category"] == ALL and rows_a_pass(row) is not None
    }
    if not points:
        return False
    widest = 1.6 * max(x for x, _ in points.values())
    highest = 1.25 * max(y for _, y in points.values())
    log_ticks(axes, "x", 0.95, widest)
    log_ticks(axes, "y", 0.9, highest)
    if cost is not None:
        across = np.geomspace(1, widest, 200)
        border = [cost.v(x) for x in across]
        axes.fill_between(across, 0.01, border, color=SHADE, linewidth=0, zorder=0)
        axes.plot(across, border, color=SOFT, linewidth=1.2)
        axes.text(
            widest, 0.92, f"slower than plain: {cost.model}'s passes cost more ",
            ha="right", va="bottom", fontsize=8, color=SOFT,
        )  # fmt: skip
    families = dict.fromkeys(name.partition(":")[0] for name in points)
    look = dict(zip(families, cycle(zip(OURS, MARKERS, strict=True))))
    names = [("plain", (1.0, 1.0), INK)]
    for name, point in points.items():
        family = name.partition(":")[0]
        colour, marker = look[family]
        axes.plot(*point, marker, color=colour, markersize=7)
        text = short(name) if len(families) > 1 else short(name).removeprefix(f"{family} ")
        names.append((text, point, colour))
    axes.plot(1, 1, "o", color=INK, markersize=5)
    whose = f" ({family})" if len(families) == 1 else ""
    axes.set_xlabel(f"rows of a pass, on average{whose}")
    axes.set_ylabel("tau: tokens a pass")
    axes.grid()
    name_points(axes, names)
    return True


def scaling(axes: Axes, rows: Rows) -> bool:
    """Tau over the rows of a pass for the settings of one drafter, with a line through them for each category.

    Fu et al. (arXiv 2402.02057): tokens a step grow linearly with the logarithm of what a step computes.
    """
    families: dict[str, list[Row]] = {}
    for name, own in systems(rows).items():
        families.setdefault(name.partition(":")[0], []).extend(own)
    drafter, family = max(families.items(), key=lambda item: len(item[1]), default=("", []))
    categories = dict.fromkeys(str(row["category"]) for row in family)
    if len(categories) > 1:
        del categories[ALL]
    ends = []
    for category, colour, marker in zip(categories, cycle(OURS), cycle(MARKERS), strict=False):
        same = [row for row in family if row["category"] == category]
        points = sorted(_place(row) for row in same if rows_a_pass(row) is not None)
        if len(points) < SETTINGS:
            return False
        across, up = np.array(points).T
        axes.plot(across, up, marker, color=colour, markersize=5.5)
        if across[-1] > across[0]:
            slope, start = np.polyfit(np.log2(across), up, 1)
            line = start + slope * np.log2(across)
            axes.plot(across, line, color=colour, linewidth=1.4)
            name = f"{category.replace('_', ' ')}  {slope:+.2f} a doubling"
            ends.append((name, (across[-1], line[-1]), colour))
    if not categories:
        return False
    low, high = (f(rows_a_pass(row) or 1.0 for row in family) for f in (min, max))
    log_ticks(axes, "x", 0.8 * low, 2.4 * high)
    axes.set_ylim(1, None)
    axes.set_xlabel(f"rows of a pass, on average, for {len(points)} settings of {drafter}")
    axes.set_ylabel("tau: tokens a pass")
    axes.grid()
    name_points(axes, ends, places=RIGHT)
    return True


def _place(row: Row) -> Point:
    rows = rows_a_pass(row)
    assert rows is not None
    return rows, _number(row, "tau")


def _number(row: Row, *keys: str) -> float:
    """The first of these values that the row has."""
    values: Sequence[object] = [row[key] for key in keys if row[key] is not None]
    assert isinstance(values[0], int | float), f"{keys} of {row['drafter']}"
    return float(values[0])
