"""Every network on the native kernels: the trees of its oracle in torch, and the row law."""

from __future__ import annotations

import pytest

from forerun import _native
from tests.native.networks import NETWORKS, target

LAYERED = [name for name, kind in NETWORKS.items() if kind.has_layers]
STATES = [name for name in NETWORKS if name not in LAYERED]


@pytest.mark.parametrize("name", NETWORKS)
def test_trees_are_those_of_the_oracle(name):
    kind = NETWORKS[name]
    rows = range(3 if kind.has_layers else 8)
    ours = kind.drafts(kind.begun(kind.native()), rows)
    theirs = kind.drafts(kind.begun(kind.in_torch()), rows)
    for (tokens, parents, chances), (tokens2, parents2, chances2) in zip(ours, theirs, strict=True):
        assert (tokens, parents) == (tokens2, parents2)
        assert chances == pytest.approx(chances2, abs=kind.atol)
    assert {len(tree[0]) for tree in ours} == {kind.num_nodes}
    assert any(max(tree[1]) > 1 for tree in ours)  # more than one step was used
    assert any(len(set(tree[1])) < len(tree[1]) for tree in ours)  # not only chains


@pytest.mark.parametrize("name", LAYERED)
def test_rows_fed_at_once_or_one_by_one_give_the_same_bits(name):
    kind, model = NETWORKS[name], target("q8_0")
    expected = kind.drafts(kind.begun(kind.native(model, 8)))
    for step in (1, 7, 64):
        network = kind.begun(kind.native(model, 8), step)
        assert kind.drafts(network) == expected
        assert kind.drafts(network) == expected  # guessed rows leave nothing behind
        for slot in (2, 0, 1):
            assert kind.drafts(network, [slot]) == [expected[slot]]


@pytest.mark.parametrize("num_steps", range(1, 9))
@pytest.mark.parametrize("form", ["q8_0", "f32"])
@pytest.mark.parametrize("name", ["eagle 3.1", "dspark", "a block of nine"])
def test_a_text_gets_the_same_draft_alone_and_in_company(name, form, num_steps):
    """Rows of a head that are not a multiple of eight are read one sequence after another."""
    kind = NETWORKS[name]
    network = kind.begun(kind.native(target(form), 8))
    together = kind.drafts(network, num_steps=num_steps)
    for slot in range(3):
        assert kind.drafts(network, [slot], num_steps) == [together[slot]]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("num_rows", [5, 8, 12, 20])
def test_a_state_gets_the_same_draft_alone_and_in_company(name, num_rows):
    """Also beside more than lie side by side."""
    kind = NETWORKS[name]
    network = kind.native(target("q8_0"), 8)
    together = kind.drafts(network, range(num_rows))
    for row in range(num_rows):
        assert kind.drafts(network, [row]) == [together[row]], row


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(
    "name",
    [
        "recurrent, lstm",
        "recurrent, mlp, each depth its own",
        "medusa, heads of its own",
        "eagle 3.1",
        "dspark",
    ],
)
def test_drafts_do_not_depend_on_threads_and_instruction_set(name, bits):
    kind = NETWORKS[name]
    expected = kind.drafts(kind.begun(kind.native(target("q8_0", isa="portable"), bits)))
    for isa in _native.runnable_isas():
        for num_threads in (1, 2, 3):
            model = target("q8_0", isa=isa, num_threads=num_threads)
            assert kind.drafts(kind.begun(kind.native(model, bits))) == expected
