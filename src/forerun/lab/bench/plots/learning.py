"""Tokens a pass over the requests of a topic, with learning between them and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.lab.bench.plots.style import OURS, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def over_requests(axes: Axes, moving: Sequence[tuple[float, float]]) -> bool:
    """Both moving means."""
    if not moving:
        return False
    numbers = range(1, len(moving) + 1)
    fixed, learning = zip(*moving, strict=True)
    axes.plot(numbers, learning, color=OURS[0], linewidth=2, label="learning while serving")
    axes.plot(numbers, fixed, color=SOFT, linewidth=2, label="as it shipped")
    axes.fill_between(numbers, fixed, learning, color=OURS[0], alpha=0.12, linewidth=0)
    axes.set_xlabel("requests of the topic, one after the other")
    axes.set_ylabel("tokens a pass (tau), moving mean")
    return True
