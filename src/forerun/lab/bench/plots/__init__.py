"""Pictures of a benchmark, as PNG and SVG: what drafters bring, what passes cost, what runs came to.

Needs matplotlib (`pip install '.[plots]'` in a clone), which is imported only here and only when something is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.lab.bench.plots import pictures
from forerun.lab.bench.plots.style import STYLE

PICTURES: Mapping[str, tuple[str, Callable[..., bool]]] = {
    "speedup": ("Speed-up over plain decoding", pictures.speedups),
    "acceptance": ("Acceptance by depth", pictures.acceptance),
    "v": ("The cost of rows", pictures.curves),
    "training": ("Training", pictures.training),
}
"""By the end of a file's name: a caption, and what draws it from rows; False if there is nothing to draw."""


def draw(
    names: Sequence[str], rows: Sequence[object], folder: Path, stem: str, *, title: str = ""
) -> dict[str, str]:
    """Write `stem`-NAME.png and .svg of `PICTURES`, where there are rows for one; returns captions and PNG names.

    `title` is what was measured, the model first. Raises ConfigError without matplotlib.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib: pip install '.[plots]' in a clone, or leave them out with --no-plots"
        ) from error
    drawn = {}
    pyplot.switch_backend("agg")
    for name in names:
        caption, picture = PICTURES[name]
        with pyplot.rc_context(STYLE):
            figure, axes = pyplot.subplots()
            if picture(axes, rows):
                axes.set_title(f"{caption} · {title or stem}", pad=14)
                figure.legend(loc="outside right upper")
                path = folder / f"{stem}-{name}.png"
                figure.savefig(path)
                figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
                drawn[caption] = path.name
            pyplot.close(figure)
    return drawn
