"""Recurrent networks on the native kernels: sampled drafts, rounding, budgets, the head, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun import _native
from forerun.core.random import Noise
from forerun.model.backends.native import load as load_native
from tests.native.models import GATED, TYPES, VOCAB, random_weights
from tests.native.networks import RECURRENT, WIDTH, hidden, recurrent, target, weights_of
from tests.oracles.growth import Solo, TreeNoise, native_noises
from tests.oracles.growth import draft as drafted


def torch_network(weights, model):
    """The oracle; without torch the test is skipped."""
    pytest.importorskip("torch")
    from tests.oracles.networks import TorchRecurrent

    return TorchRecurrent(weights, model)


def drafts(network, num_rows=1, num_nodes=9, num_steps=5, least=0.0):
    tokens = [(7 * i + 1) % VOCAB for i in range(num_rows)]
    request = Solo(tokens, [num_nodes] * num_rows, num_steps, least)
    request.states = hidden(num_rows)
    return drafted(network, request)


@pytest.mark.parametrize("tokens", [np.arange(0, 700, 2), None], ids=["some", "all"])
def test_a_sampled_draft_over_many_tokens_is_that_of_the_torch_twin(tokens):
    """The head is read in blocks: each sees the noise of its own tokens."""
    config = replace(GATED, vocab_size=700)
    model = load_native(config, random_weights(config, "f32"), num_threads=1)
    weights, noises = weights_of(tokens=tokens), [TreeNoise(Noise(5), 30), TreeNoise(Noise(6), 9)]
    request = Solo([1, 8], [9, 9], 4, 0.0, noises=noises, states=hidden(2))
    expected = drafted(torch_network(weights, model), request)
    request.noises = native_noises(noises)
    for tree, other in zip(drafted(recurrent(weights, model, 32), request), expected, strict=True):
        assert tree[:2] == other[:2]
        assert tree[2] == pytest.approx(other[2], abs=1e-4)
    assert len({parent for tree in expected for parent in tree[1]}) > 2


@pytest.mark.parametrize(("bits", "most"), [(16, 0.005), (8, 0.03), (4, 0.2)])
def test_rounded_weights_and_int8_activations_move_chances_little(bits, most):
    """8 bits: a group's codes are off by 0.4 % of its largest value at most, in weights and activations."""
    weights = weights_of(**RECURRENT["lstm"])
    (rounded,) = drafts(recurrent(weights, target(), bits), num_steps=1, num_nodes=8)
    (exact,) = drafts(torch_network(weights, target()), num_steps=1, num_nodes=8)
    chances = dict(zip(exact[0], exact[2], strict=True))
    shared = [(p, chances[token]) for token, _, p in zip(*rounded, strict=True) if token in chances]
    assert len(shared) >= 5
    assert all(abs(a - b) < most for a, b in shared)


def test_sequences_in_one_batch_have_budgets_of_their_own():
    network = recurrent(weights_of(**RECURRENT["lstm"]), target("q8_0"), 8)
    together = drafts(network, 5)
    tokens = [(7 * i + 1) % VOCAB for i in range(5)]
    some = drafted(network, Solo(tokens, [9, 0, 4, 0, 9], 5, 0.0, states=hidden(5)))
    assert [some[0], some[4]] == [together[0], together[4]]
    assert some[1] == some[3] == ((), (), ())
    assert some[2] == tuple(part[:4] for part in together[2])


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_the_head_are_the_targets_own(dtype):
    config = replace(GATED, hidden_size=256, intermediate_size=256, num_heads=8)
    model = load_native(config, random_weights(config, dtype), num_threads=1)
    network = _native.RecurrentNetwork(model.runtime, model.native, 256, 3, 3, False, False)
    ids = [0, 3, 17, 18, 40, VOCAB - 1]
    network.set_tokens(ids)
    network.take_head()
    rows, whole = np.empty((len(ids), 256), np.float32), np.empty((VOCAB, 256), np.float32)
    network.unpack("head.0", rows)
    model.native.unpack("head", whole)
    assert (rows == whole[ids]).all()


def test_nodes_below_the_least_chance_are_left_out():
    network = recurrent(weights_of(**RECURRENT["lstm"]), target(), 8)
    (tokens, parents, chances) = drafts(network, least=0.05, num_nodes=40)[0]
    reach = []
    for parent, chance in zip(parents, chances, strict=True):
        reach.append(chance * (reach[parent] if parent >= 0 else 1))
    assert min(reach) >= 0.05
    assert reach == sorted(reach, reverse=True)
    assert 0 < len(tokens) < 40


def test_states_that_are_not_finite_give_no_draft():
    network = recurrent(weights_of(**RECURRENT["lstm"]), target(), 8)
    states = np.full((1, WIDTH), np.nan, np.float32)
    assert drafted(network, Solo([1], [5], 3, 0.0, states=states)) == [((), (), ())]


def test_what_is_wrong_is_told():
    model = target()
    network = _native.RecurrentNetwork(model.runtime, model.native, 64, 3, 3, True, False)
    with pytest.raises(ValueError, match=r"proj\.0 is missing"):
        network.check()
    network.set("proj.0", "f32", 64, np.zeros((64, 256), np.uint8))
    with pytest.raises(ValueError, match=r"proj.0 is \(64, 64\), expected \(256, 64\)"):
        network.check()
    with pytest.raises(ValueError, match="max_depth"):
        _native.RecurrentNetwork(model.runtime, model.native, 64, 3, 99, True, False)
    whole = recurrent(weights_of(**RECURRENT["lstm"]), model, 8)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        drafted(whole, Solo([VOCAB], [5], 3, 0.0, states=hidden(1)))
    with pytest.raises(ValueError, match="a state of the target is needed"):
        drafted(whole, Solo([1], [5], 3, 0.0))
    with pytest.raises(ValueError, match="a row of states is needed"):
        drafted(whole, Solo([1], [5], 3, 0.0, rows=[1], states=hidden(1)))
