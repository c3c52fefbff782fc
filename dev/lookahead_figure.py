"""Draws Lookahead's tokens a pass over its rows, and over what they cost: `python -m dev.lookahead_figure FILE.json`.

FILE has `counts`, a line a size (`window`, `ngram`, `guesses`, mean `rows` of a pass, `tau` by category: `bench
--no-controller --draft-budget 1000 --json`), and `ms` of passes by rows and instruction set (`bench kernels`). The
picture lies beside it; the table of docs/drafters/ngrams.md is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from forerun.lab.bench.plots.style import INK, STYLE, log_ticks, looks

NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}


def main() -> None:
    """Draw, and print the table and the slopes."""
    file = Path(sys.argv[1])
    data = json.loads(file.read_text())
    counts = sorted(data["counts"], key=lambda line: line["rows"])
    rows = np.array([line["rows"] for line in counts])
    kinds = [*counts[0]["tau"]]
    tau = {kind: np.array([line["tau"][kind] for line in counts]) for kind in kinds}
    v = {}
    for isa, ms in data["ms"].items():
        known, times = np.array([int(k) for k in ms]), np.array([*ms.values()])
        beyond = np.maximum(1, rows / known[-1])  # many rows cost in proportion
        v[isa] = np.interp(rows, known, times) * beyond / times[0]
    mpl.rcParams.update(STYLE)
    figure, (left, right) = plt.subplots(1, 2)
    for kind, look in zip(kinds, looks([False] * len(kinds)), strict=True):
        slope = np.polyfit(np.log2(rows), tau[kind], 1)[0]
        left.plot(rows, tau[kind], label=f"{kind}  +{slope:.2f} a doubling", **look)
    for isa, look in zip(v, looks([False] * len(v)), strict=True):
        right.plot(rows, tau["all"] / v[isa], label=NAMES[isa], **look)
    right.axhline(1, color=INK, linewidth=1)
    left.set_ylabel("tokens a pass")
    right.set_ylabel("tokens a pass over its cost, all kinds")
    for axes in (left, right):
        log_ticks(axes, "x", 1.4, 1.2 * rows[-1], [2**i for i in range(9)])
        axes.set_xlabel("rows of a pass")
        axes.legend()
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    for i, line in enumerate(counts):
        sizes = ", ".join(str(line[name]) for name in ("window", "ngram", "guesses"))
        each = " | ".join(f"{tau[kind][i]:.2f}" for kind in kinds)
        paid = " | ".join(f"{tau['all'][i] / v[isa][i]:.2f}x" for isa in v)
        print(f"| {sizes} | {rows[i]:.1f} | {each} | {paid} |")


if __name__ == "__main__":
    main()
