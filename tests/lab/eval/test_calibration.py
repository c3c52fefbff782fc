"""What became of the nodes of drafts, counted by chance and by depth."""

from __future__ import annotations

import pytest

from forerun.core.types import Draft, Outcome
from forerun.drafting.base import Drafter
from forerun.lab.eval.calibration import MAX_DEPTH, JudgedNode, NodeRecorder, bins, table


def recorded(draft: Draft, emitted: tuple[int, ...]) -> list[JudgedNode]:
    recorder = NodeRecorder(Drafter())
    recorder.observe([], [draft], [Outcome((), emitted)])
    return recorder.nodes


def test_nodes_count_only_below_a_right_parent():
    draft = Draft((5, 6, 7, 8), (-1, -1, 1, 0), (0.5, 0.4, 0.9, 0.3))
    assert recorded(draft, (6, 9)) == [
        JudgedNode(1, 0.5, False),
        JudgedNode(1, 0.4, True),
        JudgedNode(2, 0.9, False),
    ]


def test_deep_nodes_are_counted_together_and_a_chance_may_be_missing():
    nodes = recorded(Draft.chain([*range(9)]), tuple(range(10)))
    assert [node.depth for node in nodes] == [1, 2, 3, 4, 5, *[MAX_DEPTH] * 4]
    assert all(node.confidence is None and node.is_right for node in nodes)
    rows = table("chain", nodes, 10.0)
    assert [row["depth"] for row in rows] == ["all", "1", "2", "3", "4", "5", "6+"]
    assert rows[0]["said"] is rows[0]["gap"] is None
    assert rows[0]["accepted"] == 1.0


def test_the_gap_is_the_mean_distance_of_said_and_accepted_over_the_bins():
    nodes = [JudgedNode(1, 0.25, i < 1) for i in range(4)] + [
        JudgedNode(2, 1.0, i < 1) for i in range(2)
    ]
    assert bins(nodes) == [(0.25, 0.25, 4), (1.0, 0.5, 2)]
    whole, first, second = table("any", nodes, 1.5)
    assert (first["gap"], second["gap"]) == (0.0, 0.5)
    assert whole["gap"] == pytest.approx((4 * 0.0 + 2 * 0.5) / 6)
    assert whole["said"] == pytest.approx(0.5)
    assert whole["accepted"] == pytest.approx(2 / 6)
