"""Pictures of a benchmark, as PNG and SVG: what drafters bring (`drafters.py`) and what passes cost (`passes.py`).

Needs matplotlib (`pip install 'forerun[plots]'`), which is imported only here and only when something is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.bench.pass_costs import PassCosts
from forerun.bench.plots import drafters, passes
from forerun.bench.plots.style import STYLE, Rows
from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pictures = dict[str, tuple[str, Callable[["Axes"], bool]]]
"""By the end of the file's name: a caption, and what draws it; False if there is nothing to draw."""


def draw(rows: Rows, folder: Path, title: str, own: PassCosts | None = None) -> dict[str, str]:
    """Write `title`-*.png and .svg for which there are measurements; captions and file names of the PNGs.

    `own` is what the model's own passes cost. Raises ConfigError without matplotlib.
    """
    pictures: Pictures = {
        "speedup": ("Speed-up over plain decoding", lambda axes: drafters.speedups(axes, rows)),
        "acceptance": ("Acceptance by depth", lambda axes: drafters.acceptance(axes, rows)),
        "tau": ("What tau turns into", lambda axes: drafters.taus(axes, rows)),
        "cost": ("Tokens a pass brings", lambda axes: drafters.costs(axes, rows, own)),
        "scaling": ("Tokens against rows", lambda axes: drafters.scaling(axes, rows)),
    }
    return _save(pictures, folder, title)


def draw_passes(costs: Sequence[PassCosts], folder: Path, title: str) -> dict[str, str]:
    """The same for what passes cost: v(k), and the roofline."""
    pictures: Pictures = {
        "v": ("The cost of rows", lambda axes: passes.curves(axes, costs)),
        "roofline": ("Roofline", lambda axes: passes.roofline(axes, costs)),
    }
    return _save(pictures, folder, title)


def _save(pictures: Pictures, folder: Path, title: str) -> dict[str, str]:
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib: pip install 'forerun[plots]', or leave them out with --no-plots"
        ) from error
    drawn = {}
    pyplot.switch_backend("agg")
    for name, (caption, picture) in pictures.items():
        with pyplot.rc_context(STYLE):
            figure, axes = pyplot.subplots()
            if picture(axes):
                axes.set_title(f"{caption} · {title}", pad=14)
                figure.legend(loc="outside right upper")
                path = folder / f"{title}-{name}.png"
                figure.savefig(path)
                figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
                drawn[caption] = path.name
            pyplot.close(figure)
    return drawn
