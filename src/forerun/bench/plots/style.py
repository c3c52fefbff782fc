"""How all pictures look: colours, type, names beside what they name. Light cards, so that dark pages can show them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from forerun.bench.report import label
from forerun.bench.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Row]
Point = tuple[float, float]

OURS = ("#0b7a5b", "#d9731a", "#3257b8", "#b02a6b", "#8a6d1d", "#2089a8", "#7c4bb0")
PEERS = ("#565656", "#8c8c8c", "#b0a18a", "#7d8ba0")
INK, SOFT, GRID, SHADE, PAPER = "#262626", "#6e6e6e", "#e4e2dd", "#f1efea", "#fcfbf9"
MARKERS = "osD^vPX"
SMALL = 8
TICKS = (
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    1.25,
    1.5,
    2,
    2.5,
    3,
    4,
    6,
    8,
    12,
    16,
    32,
    64,
    128,
    256,
    512,
    1000,
    2000,
    5000,
)
PLACES = (
    ((6, 0), "left", "center"),
    ((-6, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
    ((6, 8), "left", "bottom"),
    ((6, -8), "left", "top"),
    ((-6, 8), "right", "bottom"),
    ((-6, -8), "right", "top"),
)
"""Where a name may stand beside its point: offset in points and how it is aligned, best first."""

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
    axes: Axes, names: Sequence[tuple[str, Point, str]], others: Sequence[Point] = ()
) -> None:
    """Write (text, point, colour) beside points, where it covers neither a text nor one of these or `others`.

    The axes' limits must be final: places are reckoned in pixels.
    """
    axes.figure.canvas.draw()
    scale = axes.figure.dpi / 72
    dots = [axes.transData.transform(point) for _, point, _ in names]
    around = [*dots, *(axes.transData.transform(point) for point in others)]
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in around]
    for (text, point, colour), (x, y) in zip(names, dots, strict=True):
        width, height = 0.56 * SMALL * len(text) * scale, 1.15 * SMALL * scale
        boxes = [_box(x, y, place, width, height, scale) for place in PLACES]
        crowd = [sum(_overlap(box, other) for other in taken) for box in boxes]
        best = min(range(len(PLACES)), key=crowd.__getitem__)
        taken.append(boxes[best])
        offset, across, up = PLACES[best]
        axes.annotate(
            text, point, offset, textcoords="offset points", ha=across, va=up, fontsize=SMALL, color=colour
        )  # fmt: skip


def name_ends(axes: Axes, names: Sequence[tuple[str, Point, str]]) -> None:
    """Write (text, last point, colour) to the right of lines, one below the other where the ends lie close."""
    axes.figure.canvas.draw()
    gap, bottom = 1.35 * SMALL * axes.figure.dpi / 72, axes.get_window_extent().y0
    ends = [
        (axes.transData.transform(point)[1], text, point, colour) for text, point, colour in names
    ]
    ends.sort(key=lambda end: -end[0])
    places: list[float] = []
    for y, *_ in ends:
        places.append(min(y, places[-1] - gap) if places else y)
    for i in reversed(range(len(places))):  # and up again from the bottom, if it was reached
        places[i] = max(places[i], bottom + gap * (len(places) - i - 0.5))
    for place, (y, text, point, colour) in zip(places, ends, strict=True):
        offset = (7, (place - y) * 72 / axes.figure.dpi)
        axes.annotate(
            text, point, offset, textcoords="offset points", va="center", fontsize=SMALL, color=colour
        )  # fmt: skip


Box = tuple[float, float, float, float]


def _box(
    x: float, y: float, place: tuple[Point, str, str], width: float, height: float, scale: float
) -> Box:
    (dx, dy), across, up = place
    left = x + dx * scale - {"left": 0.0, "center": width / 2, "right": width}[across]
    low = y + dy * scale - {"bottom": 0.0, "center": height / 2, "top": height}[up]
    return left, low, left + width, low + height


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)
