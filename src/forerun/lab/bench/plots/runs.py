"""What single runs came to: training, memory that is cut, chances. A function a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerun.lab.bench.memory import REFERENCE
from forerun.lab.bench.plots.style import INK, OURS, SOFT, Rows, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 40
"""Pieces of a run: the loss of each is drawn as its mean, above the single steps."""


def training(axes: Axes, history: Sequence[Mapping[str, float]]) -> bool:
    """Draw a training run: loss on the left axis, accept length (tau) on the right one."""
    steps = [line for line in history if "loss" in line]  # a trained drafter is measured first
    if not steps:
        return False
    tokens = np.array([line["tokens"] for line in steps]) / 1e6
    losses = np.array([line["loss"] for line in steps])
    axes.plot(tokens, losses, color=OURS[0], linewidth=0.5, alpha=0.35)
    parts = [part for part in np.array_split(np.arange(len(steps)), WINDOW) if len(part)]
    means = [(tokens[part].mean(), losses[part].mean()) for part in parts]
    axes.plot(*zip(*means, strict=True), color=OURS[0], linewidth=1.8, label="loss a token")
    axes.set_ylim(0.9 * losses.min(), 1.05 * float(np.quantile(losses, 0.98)))
    axes.set_xlabel("tokens learned, million")
    axes.set_ylabel("loss a token")
    measured = [(line["tokens"] / 1e6, line) for line in history if "tau" in line]
    if measured:
        right = axes.twinx()
        right.spines["right"].set_visible(True)
        right.grid(visible=False)
        right.set_ylabel("held-out tokens a pass (tau)")
        for name, color, label in (
            ("tau", OURS[1], "tau, greedy"),
            ("tau_sampled", OURS[2], "tau, temperature 1"),
        ):
            points = [(at, line[name]) for at, line in measured]
            right.plot(*zip(*points, strict=True), color=color, marker="o", label=label)
        best = max(measured, key=lambda each: each[1]["tau"] + each[1]["tau_sampled"])
        right.annotate(
            f"best: {best[1]['tau']:.2f} and {best[1]['tau_sampled']:.2f}",
            (best[0], best[1]["tau"]),
            (-8, -14),
            textcoords="offset points",
            ha="right",
            color=INK,
        )
    return True


def kept(axes: Axes, rows: Rows) -> bool:
    """Draw speed kept against generation memory cut, percent both; bars are 95 % intervals."""
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


def calibration(axes: Axes, rows: Rows) -> bool:
    """Draw shares accepted against chances said, a line for each drafter that says any."""
    rows = [row for row in rows if row["bins"]]
    for row, look in zip(rows, looks([False] * len(rows)), strict=True):
        said, right, counts = zip(*row["bins"], strict=True)
        axes.plot(said, right, label=row["drafter"], color=look["color"], linewidth=1)
        sizes = 4 + 80 * np.sqrt(np.array(counts) / max(counts))
        axes.scatter(said, right, sizes, marker=look["marker"], color=look["color"])
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", linewidth=1)
    axes.set_xlabel("chance said (larger marks: more nodes)")
    axes.set_ylabel("share accepted")
    return bool(rows)
