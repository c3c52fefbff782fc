"""What the parts of a chain are worth: chances of nodes, the price of a node, the ledger of trials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.types import Draft
from forerun.drafters._worth import TRIAL_SHARE, Expectation, Ledger, Nodes, Price


def test_before_anything_is_known_half_of_a_draft_is_expected():
    assert Expectation().of(4) == 2
    assert Nodes().confidence(3) == (0.5, 0.5, 0.5)


@given(st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_expected_tokens_are_those_that_came(lengths):
    """Chains of three: the tokens expected of k nodes tend to the mean of what k nodes brought."""
    nodes = Nodes()
    for length in lengths * 4:
        said = nodes.record(Draft.chain([1, 2, 3]), [*range(1, length + 1), 9])
        assert said == length
    for k, expected in enumerate(nodes.expected(), 1):
        seen = sum(min(length, k) for length in lengths) / len(lengths)
        assert expected == pytest.approx(seen, abs=0.6)


def test_only_nodes_below_what_was_said_are_judged():
    nodes = Nodes()
    nodes.record(Draft((5, 6, 7, 8), (-1, -1, 1, 1)), (6, 8, 9))
    cases = [(share.weight, share.total) for share in nodes.shares]
    assert cases == [(1, 0), (1, 1), (1, 0), (1, 1)]
    nodes.record(Draft((5, 6, 7, 8), (-1, -1, 1, 1)), (5,))
    assert [share.weight for share in nodes.shares[2:]] == [1, 1], "their parent was not said"


def test_a_tree_expects_what_its_paths_reach():
    nodes = Nodes()
    for _ in range(200):
        nodes.record(Draft((1, 2, 3), (-1, -1, 0)), (1, 3, 9))
    assert nodes.expected() == pytest.approx([0.95, 1.0, 1.95], abs=0.1)
    assert nodes.parents == (-1, -1, 0)
    assert tree.chain(3) != nodes.parents


def test_the_price_of_a_node_is_its_share_of_the_time():
    price = Price()
    assert price.wants_alone
    assert not price.is_known
    for _ in range(40):
        price.record_alone(1, 2.0)
    price.record_with(1, 4, 3.0)  # four nodes took the time of two more steps
    assert price.extra.value == pytest.approx(0.5)
    assert price.rate(2, 3.0) == pytest.approx(4 / 2)
    price.record_with(1, 4, 3000.0)
    assert price.extra.value < 2, "one slow step is not believed"


def test_after_many_steps_with_it_one_without_is_wanted():
    price = Price()
    for _ in range(40):
        price.record_alone(1, 1.0)
    assert not price.wants_alone
    for _ in range(100):
        price.record_with(1, 1, 1.5)
    assert price.wants_alone
    price.record_alone(1, 1.0)
    assert not price.wants_alone


def test_a_sequence_is_begun_only_where_others_earned_their_prompts():
    ledger = Ledger()
    assert not ledger.pays(0)
    ledger.book([0], -2.0)  # the prompt is read
    assert ledger.pays(0), "what is read is paid for"
    assert not ledger.pays(1)
    ledger.book([0, 1], 6.0)
    ledger.close(0)
    assert ledger.pays(2)
    assert ledger.of_sequence.value == 1.0
    for seq_id in range(3, 9):
        ledger.book([seq_id], -1.0)
        ledger.close(seq_id)
    assert not ledger.pays(9)


def test_what_trials_lost_is_earned_back_before_the_next():
    ledger = Ledger()
    ledger.book([0], -1.0)
    num_steps = 0
    while ledger.purse < 0:
        ledger.earn(0.1)
        num_steps += 1
    assert num_steps == pytest.approx(1 / (0.1 * TRIAL_SHARE), rel=0.01)
    ledger.book([0], 5.0)
    assert ledger.purse < 0.1, "gains are not saved for losses to come"
