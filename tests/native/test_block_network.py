"""Block drafters on the native kernels: which places they guess, when a block is filled, and shapes that cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.errors import LoadError
from tests.native.models import VOCAB
from tests.native.networks import DFLASH, NETWORKS, block_kind, prefill, text


def test_fewer_steps_guess_the_first_places():
    kind = NETWORKS["dflash"]
    for tokens, parents, _ in kind.drafts(kind.begun(kind.native()), num_steps=2):
        depths = [0]
        for parent in parents:
            depths.append(depths[parent + 1] + 1)
        assert max(depths) == 2, tokens


def test_a_block_is_filled_once_for_all_steps_of_a_draft():
    """What joins later, after another draft began, has a block of its own."""
    kind = NETWORKS["dspark"]
    network = kind.begun(kind.native())
    first = kind.drafts(network)
    tokens, states = text(5, 3)
    prefill(network, 0, tokens, states)
    second = kind.drafts(network)
    assert second[0] != first[0]
    assert second[1:] == first[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 18}, "a block must guess 1 to 16 tokens"),
        ({"mask_token_id": VOCAB}, "the mask is outside the vocabulary"),
        ({"intermediate_size": 90}, "MLP size must be multiples of 16"),
    ],
)
def test_shapes_that_cannot_run_are_refused(change, message):
    with pytest.raises(LoadError, match=message):
        block_kind(replace(DFLASH, **change)).native()
