"""Pictures of a benchmark, as PNG and SVG: what drafters bring, what passes cost, what runs came to.

Needs matplotlib (`pip install '.[plots]'` in a clone), which is imported only here and only when something is drawn.
What draws a picture says False if there is nothing to draw.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forerun.core.errors import ConfigError
from forerun.lab.bench.pass_costs import PassCosts
from forerun.lab.bench.plots import pictures
from forerun.lab.bench.plots.style import STYLE, Rows

Picture = tuple[str, str, Callable[..., bool], tuple[object, ...]]
"""The end of a file's name, a caption, and what draws it from these figures; False if there is nothing to draw."""


def draw(rows: Rows, folder: Path, stem: str, *, title: str = "") -> dict[str, str]:
    """Write `stem`-*.png and .svg for which there are measurements; captions and file names of the PNGs.

    `title` is what was measured, the model first. Raises ConfigError without matplotlib.
    """
    return _save(
        folder,
        stem,
        title,
        ("speedup", "Speed-up over plain decoding", pictures.speedups, (rows,)),
        ("acceptance", "Acceptance by depth", pictures.acceptance, (rows,)),
    )


def draw_passes(
    costs: Sequence[PassCosts], folder: Path, stem: str, *, title: str = ""
) -> dict[str, str]:
    """The same for v(k), what passes cost."""
    return _save(
        folder,
        stem,
        title,
        ("v", "The cost of rows", pictures.curves, (costs,)),
    )


RUNS: Mapping[str, tuple[str, Callable[..., bool]]] = {
    "kept": ("Speed kept when memory is cut", pictures.kept),
    "training": ("Training", pictures.training),
    "calibration": ("Chance said and share accepted", pictures.calibration),
}


def draw_run(
    name: str, figures: Sequence[object], folder: Path, stem: str, *, title: str = ""
) -> dict[str, str]:
    """The same for a picture of `RUNS`: rows of points, or lines of a metrics.csv."""
    return _save(folder, stem, title, (name, *RUNS[name], (figures,)))


def plot(
    name: str, figures: Sequence[object], origin: Mapping[str, object]
) -> Callable[[Path, str], object]:
    """Return what draws a picture of `RUNS` into a folder under a stem, for `output.publish`."""
    title = str(origin.get("model"))
    return lambda folder, stem: draw_run(name, figures, folder, stem, title=title)


def _save(folder: Path, stem: str, title: str, *pictures: Picture) -> dict[str, str]:
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib: pip install '.[plots]' in a clone, or leave them out with --no-plots"
        ) from error
    drawn = {}
    pyplot.switch_backend("agg")
    for name, caption, picture, figures in pictures:
        with pyplot.rc_context(STYLE):
            figure, axes = pyplot.subplots()
            if picture(axes, *figures):
                axes.set_title(f"{caption} · {title or stem}", pad=14)
                figure.legend(loc="outside right upper")
                path = folder / f"{stem}-{name}.png"
                figure.savefig(path)
                figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
                drawn[caption] = path.name
            pyplot.close(figure)
    return drawn
