"""EAGLE-3 on the native kernels: slots, and what is refused."""

from __future__ import annotations

import pytest

from tests.native.models import VOCAB
from tests.native.networks import LENGTHS, MAX_LEN, NETWORKS, prefill, text

KIND = NETWORKS["eagle 3.1"]


def test_a_cleared_slot_is_as_new():
    network = KIND.begun(KIND.native())
    expected = KIND.drafts(network)
    network.native.clear(1)
    with pytest.raises(ValueError, match="a slot is empty or named twice"):
        KIND.drafts(network)
    tokens, states = text(1, LENGTHS[1])
    prefill(network, 1, tokens, states)
    assert KIND.drafts(network) == expected


def test_what_is_wrong_is_told():
    network = KIND.begun(KIND.native())
    tokens, states = text(0, MAX_LEN)
    with pytest.raises(IndexError, match="does not fit"):
        prefill(network, 0, tokens, states)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        prefill(network, 0, [VOCAB], states[:1])
    with pytest.raises(ValueError, match="named twice"):
        KIND.drafts(network, [0, 0])
