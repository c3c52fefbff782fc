"""EAGLE-3 on the native kernels: the trees of the torch module, and the row law."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from forerun import _native
from forerun.drafters.base.contract import Target
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafters.eagle3.drafting import eagle_network
from forerun.drafters.eagle3.files import EagleWeights
from forerun.weights.stored import stored_floats
from tests.arrays import normal
from tests.native import networks
from tests.native.models import VOCAB
from tests.native.networks import (
    LENGTHS,
    MAX_LEN,
    TOKENS,
    WIDTH,
    fill,
    options_of,
    prefill,
    target,
    text,
)

drafts = partial(networks.drafts, num_nodes=8, num_steps=6)
BASE = Eagle3Config(
    vocab_size=VOCAB,
    draft_vocab_size=len(TOKENS),
    hidden_size=WIDTH,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    layers=(0, 1, 1),
    target_head=True,
)
KINDS = {
    "3.1": BASE,
    "3.0, its own embedding and head": replace(
        BASE, fc_norm=False, norm_output=False, target_head=False, target_embedding=False
    ),
    "narrower than its target": replace(
        BASE,
        hidden_size=64,
        target_hidden_size=WIDTH,
        target_head=False,
        target_embedding=False,
    ),
    "norms of q and k, residual from the norm": replace(
        BASE, qk_norm=True, norm_before_residual=True
    ),
}


def weights_of(config: Eagle3Config) -> EagleWeights:
    tensors = {
        name: normal(*shape, seed=500 + i) / (4 if "norm" in name else 6)
        for i, (name, shape) in enumerate(config.shapes().items())
    }
    tensors = {n: stored_floats(n, 1 + t if "norm" in n else t) for n, t in tensors.items()}
    return EagleWeights(config, tensors, TOKENS, (1.0, 0.7))


def torch_eagle(weights):
    """The oracle; without torch the test is skipped."""
    pytest.importorskip("torch")
    from tests.oracles.networks import TorchEagle

    return TorchEagle(weights, target(), MAX_LEN)


def native(weights, model=None, bits=32):
    here = Target(model or target(), None, 3, MAX_LEN)
    return eagle_network(options_of(bits), weights, here)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_those_of_the_torch_module(kind):
    """Keys and values are fp16 here."""
    weights = weights_of(KINDS[kind])
    ours = drafts(fill(native(weights), LENGTHS))
    torch_trees = drafts(fill(torch_eagle(weights), LENGTHS))
    for (tokens, parents, chances), (tokens2, parents2, chances2) in zip(
        ours, torch_trees, strict=True
    ):
        assert (tokens, parents) == (tokens2, parents2)
        assert chances == pytest.approx(chances2, abs=5e-3)
    assert any(max(tree[1]) > 1 for tree in ours)
    assert any(len(set(tree[1])) < len(tree[1]) for tree in ours)  # not only chains


@pytest.mark.parametrize("kind", KINDS)
def test_rows_fed_at_once_or_one_by_one_give_the_same_bits(kind):
    weights, model = weights_of(KINDS[kind]), target("q8_0")
    expected = drafts(fill(native(weights, model, 8), LENGTHS))
    for step in (1, 7, 64):
        network = fill(native(weights, model, 8), LENGTHS, step)
        assert drafts(network) == expected
        assert drafts(network) == expected  # guessed rows leave nothing behind
        for slot in (2, 0, 1):
            assert drafts(network, [slot]) == [expected[slot]]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_drafts_do_not_depend_on_threads_and_instruction_set(bits):
    weights = weights_of(BASE)
    expected = drafts(fill(native(weights, target("q8_0", isa="portable"), bits), LENGTHS))
    for isa in _native.runnable_isas():
        for num_threads in (1, 2, 3):
            model = target("q8_0", isa=isa, num_threads=num_threads)
            assert drafts(fill(native(weights, model, bits), LENGTHS)) == expected


def test_a_cleared_slot_is_as_new():
    weights = weights_of(BASE)
    network = fill(native(weights), LENGTHS)
    expected = drafts(network)
    network.native.clear(1)
    with pytest.raises(ValueError, match="a slot is empty or named twice"):
        drafts(network)
    tokens, states = text(1, LENGTHS[1])
    prefill(network, 1, tokens, states)
    assert drafts(network) == expected


def test_what_is_wrong_is_told():
    weights = weights_of(BASE)
    network = fill(native(weights), LENGTHS)
    tokens, states = text(0, MAX_LEN)
    with pytest.raises(IndexError, match="does not fit"):
        prefill(network, 0, tokens, states)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        prefill(network, 0, [VOCAB], states[:1])
    with pytest.raises(ValueError, match="named twice"):
        drafts(network, [0, 0])
