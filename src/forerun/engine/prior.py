"""What a controller may know before its first step: costs and acceptance that were measured earlier.

It weighs as much as a few measurements and fades as real ones come. `tune/profile.py` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.core.costs import CostCurve


@dataclass(frozen=True, slots=True)
class Prior:
    """Costs in plain passes of one sequence, so that the machine's speed of the day does not matter."""

    pass_cost: CostCurve = field(default_factory=CostCurve)
    """A pass by its rows."""
    draft_cost: CostCurve = field(default_factory=CostCurve)
    """A proposal by the nodes it returned."""
    nodes: tuple[tuple[float, float], ...] = ()
    """Of node i: how often drafts had it, and how often it was accepted then."""
