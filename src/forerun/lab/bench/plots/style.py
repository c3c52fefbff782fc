"""How all pictures look: colours, markers, type, axes. Light cards, so that dark pages can show them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from forerun.lab.bench.report import label
from forerun.lab.bench.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Row]
Look = dict[str, Any]
"""Colour and marker, as matplotlib takes them."""

OURS = ("#0b7a5b", "#d9731a", "#3257b8", "#b02a6b", "#8a6d1d", "#2089a8", "#7c4bb0")
PEERS = ("#565656", "#8c8c8c", "#b0a18a", "#7d8ba0")
INK, SOFT, GRID, SHADE, PAPER = "#262626", "#6e6e6e", "#e4e2dd", "#f1efea", "#fcfbf9"
MARKERS = "osD^vPX"
TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1000)  # fmt: skip

STYLE = {
    "figure.figsize": (10, 4.8),
    "figure.dpi": 144,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.w_pad": 0.12,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 5.5,
    "svg.hashsalt": "forerun",  # the same data give the same file
}


def looks(are_peers: Sequence[bool]) -> list[Look]:
    """Choose a colour and a marker for each system, no two alike among the first 49 of ours; peers are grey."""
    ours, peers = count(), count()
    chosen = []
    for is_peer in are_peers:
        colours, i = (PEERS, next(peers)) if is_peer else (OURS, next(ours))
        marker = MARKERS[(i + i // len(colours)) % len(MARKERS)]
        chosen.append({"color": colours[i % len(colours)], "marker": marker})
    return chosen


def systems(rows: Rows) -> dict[str, list[Row]]:
    """Return the rows of each system, plain decoding left out."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row and label(row) != "none":
            series.setdefault(label(row), []).append(row)
    return series


def log_ticks(
    axes: Axes, name: Literal["x", "y"], low: float, high: float, ticks: Sequence[float] = TICKS
) -> None:
    """Make an axis logarithmic, with plain numbers."""
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)
