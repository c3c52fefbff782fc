"""How all pictures look: colours, type, names beside what they name. Light cards, so that dark pages can show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from forerun.bench.report import label
from forerun.bench.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Rows = Sequence[Row]
Point = tuple[float, float]

OURS = ("#0b7a5b", "#d9731a", "#3257b8", "#b02a6b", "#8a6d1d", "#2089a8", "#7c4bb0")
PEERS = ("#565656", "#8c8c8c", "#b0a18a", "#7d8ba0")
INK, SOFT, GRID, SHADE, PAPER = "#262626", "#6e6e6e", "#e4e2dd", "#f1efea", "#fcfbf9"
MARKERS = "osD^vPX"
SMALL = 8
TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1000)  # fmt: skip

Place = tuple[tuple[float, float], str, str]
"""Where a name may stand: offset from its point in typographic points, and how it is aligned."""
BESIDE: tuple[Place, ...] = (
    ((6, 0), "left", "center"),
    ((-6, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
    ((6, 8), "left", "bottom"),
    ((6, -8), "left", "top"),
    ((-6, 8), "right", "bottom"),
    ((-6, -8), "right", "top"),
)
"""Of points, best first."""
RIGHT: tuple[Place, ...] = tuple(
    ((7, step * 3), "left", "center") for step in sorted(range(-60, 61), key=abs)
)
"""Of the ends of lines."""

STYLE = {
    "figure.figsize": (9, 4.8),
    "figure.dpi": 144,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.w_pad": 0.12,
    "axes.facecolor": PAPER,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "svg.hashsalt": "forerun",  # the same data give the same file
}


def looks(series: dict[str, list[Row]]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each system, the same in every picture; peers are grey."""
    ours, peers, markers = cycle(OURS), cycle(PEERS), cycle(MARKERS)
    return {
        name: (next(peers if "peer" in rows[0] else ours), next(markers))
        for name, rows in series.items()
    }


def systems(rows: Rows) -> dict[str, list[Row]]:
    """The rows of each system but plain decoding, which is the measure."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row and label(row) != "none":
            found.setdefault(label(row), []).append(row)
    return found


def short(spec: str) -> str:
    """A drafter with its options' values only, as a name in a picture.

    >>> short("lookahead:window=5,ngram=3,guesses=5")
    'lookahead 5,3,5'
    """
    name, _, options = spec.partition(":")
    values = [option.partition("=")[2] for option in options.split(",") if option]
    return f"{name} {','.join(values)}" if values else name


def log_ticks(
    axes: Axes,
    name: Literal["x", "y"],
    low: float,
    high: float,
    ticks: Sequence[float] = TICKS,
) -> None:
    """Make an axis logarithmic, with plain numbers."""
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def name_points(
    axes: Axes,
    names: Sequence[tuple[str, Point, str]],
    others: Sequence[Point] = (),
    places: Sequence[Place] = BESIDE,
) -> None:
    """Write (text, point, colour) beside points, where it covers neither a text nor one of these or `others`.

    The axes' limits must be final: places are reckoned in pixels.
    """
    from matplotlib.transforms import Bbox

    axes.figure.canvas.draw()
    floor = axes.get_window_extent().y0 if places is RIGHT else 0.0
    dots = axes.transData.transform([*(point for _, point, _ in names), *others])
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in dots]

    def crowd(box: Bbox) -> float:
        """Pixels shared with what stands there already; below the floor is no place at all."""
        shared = (Bbox.intersection(box, other) for other in taken)
        area = sum(both.width * both.height for both in shared if both is not None)
        return area if box.y0 > floor else math.inf

    for text, point, colour in names:
        note = axes.annotate(
            text, point, (0, 0), textcoords="offset points", fontsize=SMALL, color=colour
        )

        def at(place: Place, note: Annotation = note) -> Bbox:
            offset, across, up = place
            note.set(position=offset, ha=across, va=up)
            return note.get_window_extent()

        taken.append(at(min(places, key=lambda place: crowd(at(place)))))
