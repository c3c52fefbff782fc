"""What asking a second drafter is worth: chances of nodes, the time of a node, gains by sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.types import Draft
from forerun.drafters._benefit import EXPLORATION_SHARE, Gains, NodeRates, StepTimes


def test_before_anything_is_known_every_node_has_an_even_chance():
    assert NodeRates().confidence(3) == (0.5, 0.5, 0.5)


@given(st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_expected_tokens_are_those_that_came(lengths):
    """Chains of three: the tokens expected of k nodes tend to the mean of what k nodes brought."""
    nodes = NodeRates()
    for length in lengths * 4:
        said = nodes.record(Draft.chain([1, 2, 3]), [*range(1, length + 1), 9])
        assert said == length
    for k, expected in enumerate(nodes.expected(), 1):
        seen = sum(min(length, k) for length in lengths) / len(lengths)
        assert expected == pytest.approx(seen, abs=0.6)


def test_only_nodes_below_what_was_said_are_judged():
    nodes = NodeRates()
    nodes.record(Draft((5, 6, 7, 8), (-1, -1, 1, 1)), (6, 8, 9))
    cases = [(rate.weight, rate.total) for rate in nodes.rates]
    assert cases == [(1, 0), (1, 1), (1, 0), (1, 1)]
    nodes.record(Draft((5, 6, 7, 8), (-1, -1, 1, 1)), (5,))
    assert [rate.weight for rate in nodes.rates[2:]] == [1, 1], "their parent was not said"


def test_a_tree_expects_what_its_paths_reach():
    nodes = NodeRates()
    for _ in range(200):
        nodes.record(Draft((1, 2, 3), (-1, -1, 0)), (1, 3, 9))
    assert nodes.expected() == pytest.approx([0.95, 1.0, 1.95], abs=0.1)
    assert nodes.parents == (-1, -1, 0)
    assert tree.chain(3) != nodes.parents


def test_the_time_of_a_node_is_its_share_of_the_time():
    times = StepTimes()
    assert times.wants_alone
    assert not times.is_known
    for _ in range(40):
        times.record_alone(1, 2.0)
    times.record_with(1, 4, 3.0)  # four nodes took the time of two more steps
    assert times.added.value == pytest.approx(0.5)
    assert times.tokens_a_step(2, 3.0) == pytest.approx(4 / 2)
    times.record_with(1, 4, 3000.0)
    assert times.added.value < 2, "one slow step is not believed"


def test_after_many_steps_with_it_one_without_is_wanted():
    times = StepTimes()
    for _ in range(40):
        times.record_alone(1, 1.0)
    assert not times.wants_alone
    for _ in range(100):
        times.record_with(1, 1, 1.5)
    assert times.wants_alone
    times.record_alone(1, 1.0)
    assert not times.wants_alone


def test_a_sequence_is_begun_only_where_others_earned_their_prompts():
    gains = Gains()
    assert not gains.are_expected(0)
    gains.record([0], -2.0)  # the prompt is read
    assert gains.are_expected(0), "what is read is paid for"
    assert not gains.are_expected(1)
    gains.record([0, 1], 6.0)
    gains.end(0)
    assert gains.are_expected(2)
    assert gains.ended.value == 1.0
    for seq_id in range(3, 9):
        gains.record([seq_id], -1.0)
        gains.end(seq_id)
    assert not gains.are_expected(9)


def test_what_trials_lost_is_earned_back_before_the_next():
    gains = Gains()
    gains.record([0], -1.0)
    num_steps = 0
    while gains.budget_s < 0:
        gains.earn(0.1)
        num_steps += 1
    assert num_steps == pytest.approx(1 / (0.1 * EXPLORATION_SHARE), rel=0.01)
    gains.record([0], 5.0)
    assert gains.budget_s < 0.1, "gains are not saved for losses to come"
