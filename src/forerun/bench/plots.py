"""Pictures of a benchmark: speed-up by category, acceptance by depth, and what tau turns into.

Needs matplotlib (`pip install 'forerun[plots]'`), which is imported only here and only when something is drawn. Each
picture is written as PNG and SVG.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.bench.report import label
from forerun.bench.summary import ALL, Row
from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1b7f5c", "#d9822b", "#3f5fbf", "#b23a63", "#7a6a2f", "#2f8fa6", "#8a5bb5")
INK, GRID = "#2b2b2b", "#e3e3e3"
TAU_TICKS = (0.25, 0.5, 0.7, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16)
STYLE = {
    "figure.figsize": (9, 4.6),
    "figure.dpi": 120,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "forerun",  # the same figures give the same file
}

Rows = Sequence[Row]


def draw(rows: Rows, folder: Path, title: str) -> dict[str, str]:
    """Write `title`-*.png and .svg for which there are figures; captions and file names of the PNGs.

    Raises ConfigError without matplotlib.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib: pip install 'forerun[plots]', or leave them out with --no-plots"
        ) from error
    pictures: tuple[tuple[str, str, Callable[[Axes, Rows], bool]], ...] = (
        ("speedup", "Speed-up by category", speedups),
        ("acceptance", "Acceptance by depth", acceptance),
        ("tau", "What tau turns into", taus),
    )
    drawn = {}
    pyplot.switch_backend("agg")
    for name, caption, picture in pictures:
        with pyplot.rc_context(STYLE):
            figure, axes = pyplot.subplots()
            if picture(axes, rows):
                axes.set_title(f"{caption}: {title}")
                path = folder / f"{title}-{name}.png"
                figure.savefig(path)
                figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
                drawn[caption] = path.name
            pyplot.close(figure)
    return drawn


def speedups(axes: Axes, rows: Rows) -> bool:
    """Bars in groups, a group a category, with intervals; False if there is nothing but plain decoding."""
    series = _series(rows)
    if not series:
        return False
    first = next(iter(series.values()))
    categories = [str(row["category"]) for row in first if row["category"] != ALL] + [ALL]
    width = 0.8 / len(series)
    for i, (name, own) in enumerate(series.items()):
        by_category = {str(row["category"]): row for row in own}
        found = [(x, by_category[c]) for x, c in enumerate(categories) if c in by_category]
        left = [x - 0.4 + (i + 0.5) * width for x, _ in found]
        heights = [_float(row, "speedup") for _, row in found]
        errors = [_interval(row) for _, row in found]
        axes.bar(
            left,
            heights,
            width * 0.9,
            yerr=list(zip(*errors, strict=True)),
            ecolor=INK,
            error_kw={"linewidth": 0.8},
            hatch="//" if "peer" in own[0] else None,
            edgecolor="white",
            color=COLOURS[i % len(COLOURS)],
            label=name,
        )
    axes.axhline(1, color=INK, linewidth=1)
    axes.text(len(categories) - 0.45, 1.02, "plain", fontsize=8, color=INK)
    axes.set_xticks(range(len(categories)), [c.replace("_", " ") for c in categories])
    axes.set_ylabel("times the speed of plain decoding")
    axes.grid(axis="y", color=GRID)
    axes.legend(loc="upper right", ncols=min(len(series), 3))
    axes.margins(x=0.02, y=0.15)
    return True


def acceptance(axes: Axes, rows: Rows) -> bool:
    """Share of drafts whose token at each depth was kept; False if nothing was drafted."""
    drafted = [row for row in rows if row["category"] == ALL and row.get("acceptance_by_depth")]
    if not drafted:
        return False
    curves = [_list(row, "acceptance_by_depth") for row in drafted]
    for i, (row, rates) in enumerate(zip(drafted, curves, strict=True)):
        depths = range(1, len(rates) + 1)
        axes.plot(depths, rates, marker="o", color=COLOURS[i % len(COLOURS)], label=label(row))
        axes.annotate(f"{rates[0]:.0%}", (1, rates[0]), (4, 6), textcoords="offset points")
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("kept, of the drafts that reach this depth")
    axes.set_xticks(range(1, 1 + max(map(len, curves))))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(color=GRID)
    axes.legend()
    return True


def taus(axes: Axes, rows: Rows) -> bool:
    """Speed-up over tau, a point a category; the distance to the diagonal is what drafting costs."""
    series = {name: own for name, own in _series(rows).items() if "peer" not in own[0]}
    if not series:
        return False
    longest = max(_float(row, "tau") for own in series.values() for row in own)
    limit = max(1.5, 1.1 * longest)
    axes.plot([1, limit], [1, limit], color=INK, linewidth=1, linestyle=":")
    middle = limit**0.6
    axes.text(middle, middle * 1.06, "drafting costs nothing", ha="right", fontsize=8)
    axes.axhspan(0.01, 1, color=GRID, alpha=0.5, linewidth=0)
    axes.text(limit, 0.97, "slower than plain", ha="right", va="top", fontsize=8)
    for i, (name, own) in enumerate(series.items()):
        points = [(_float(row, "tau"), _float(row, "speedup")) for row in own]
        sizes = [70 if row["category"] == ALL else 28 for row in own]
        across, up = zip(*points, strict=True)
        axes.scatter(across, up, s=sizes, color=COLOURS[i % len(COLOURS)], label=name)
        for row, point in zip(own, points, strict=True):
            # Points of two drafters lie close together: their labels stand on either side.
            _name_point(axes, str(row["category"]), point, is_left=i % 2 == 0)
    lowest = min(_float(row, "speedup") for own in series.values() for row in own)
    for axis, least in ((axes.xaxis, 0.93), (axes.yaxis, min(0.8, 0.95 * lowest))):
        ticks = [tick for tick in TAU_TICKS if least <= tick <= limit]
        axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (least, limit)})
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("tau: tokens a pass of the model")
    axes.set_ylabel("speed-up")
    axes.grid(color=GRID)
    axes.legend(loc="upper left")
    return True


def _name_point(axes: Axes, name: str, point: tuple[float, float], *, is_left: bool) -> None:
    axes.annotate(
        name.replace("_", " "),
        point,
        xytext=(-5, 4) if is_left else (5, -8),
        ha="right" if is_left else "left",
        textcoords="offset points",
        fontsize=7,
        color=INK,
    )


def _series(rows: Rows) -> dict[str, list[Row]]:
    """The rows of each contender but plain decoding, which is the measure."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row and label(row) != "none":
            series.setdefault(label(row), []).append(row)
    return series


def _float(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float), f"{key} of {label(row)}"
    return float(value)


def _list(row: Row, key: str) -> list[float]:
    value = row[key]
    assert isinstance(value, list)
    return value


def _interval(row: Row) -> tuple[float, float]:
    """How far the interval reaches below and above the value; nothing where there is none."""
    if row["speedup_lo"] is None:
        return 0.0, 0.0
    value = _float(row, "speedup")
    return max(value - _float(row, "speedup_lo"), 0), max(_float(row, "speedup_hi") - value, 0)
