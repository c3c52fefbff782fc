"""A training run, drawn: the loss of every step, and what the drafter brings on held-out replies, over the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerun.lab.bench.plots.style import INK, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 40
"""Pieces of a run: the loss of each is drawn as its mean, above the single steps."""


def run(axes: Axes, history: Sequence[Mapping[str, float]]) -> bool:
    """Loss on the left axis, accept length (tau) on the right one."""
    if not history:
        return False
    tokens = np.array([line["tokens"] for line in history]) / 1e6
    losses = np.array([line["loss"] for line in history])
    axes.plot(tokens, losses, color=OURS[0], linewidth=0.5, alpha=0.35)
    parts = [part for part in np.array_split(np.arange(len(history)), WINDOW) if len(part)]
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
        for name, color, told in (
            ("tau", OURS[1], "tau, greedy"),
            ("tau_sampled", OURS[2], "tau, temperature 1"),
        ):
            points = [(at, line[name]) for at, line in measured]
            right.plot(*zip(*points, strict=True), color=color, marker="o", label=told)
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
