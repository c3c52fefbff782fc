"""Speed kept against generation memory cut, a line a drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.lab.bench.memory import REFERENCE
from forerun.lab.bench.plots.style import SOFT, Rows, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kept(axes: Axes, rows: Rows) -> bool:
    """Percent both; bars are 95 % intervals over conversations."""
    drafters = [*dict.fromkeys(row["drafter"] for row in rows if "error" not in row)]
    if not drafters:
        return False
    for drafter, look in zip(drafters, looks([False] * len(drafters)), strict=True):
        mine = [row for row in rows if row["drafter"] == drafter and "error" not in row]
        cuts, shares = [row["cut"] for row in mine], [100 * row["kept"] for row in mine]
        axes.plot(cuts, shares, label=drafter, **look)
        for row in mine:
            if row["kept_lo"] is not None:
                ends = [100 * row["kept_lo"], 100 * row["kept_hi"]]
                axes.plot([row["cut"]] * 2, ends, color=look["color"], linewidth=1)
    axes.scatter(*REFERENCE, marker="*", s=90, color=SOFT, label="SpecMemo, as published")
    axes.axhline(100, color=SOFT, linestyle="--", linewidth=1)
    axes.set_xlabel("generation memory cut, %")
    axes.set_ylabel("speculative tok/s kept, %")
    axes.set_ylim(bottom=0)
    return True
