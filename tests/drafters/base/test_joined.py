"""A network joined with tables: one tree of both, where it is asked, and that the native one is the oracle's."""

from __future__ import annotations

import pytest

from forerun.core.random import Noise
from forerun.drafters.base.cascade import Cascade
from forerun.drafters.base.contract import Target
from forerun.drafters.base.spec import DrafterSpec
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for, plain
from tests.native import ngrams
from tests.native.networks import hidden, recurrent, target, weights_of
from tests.oracles.growth import SHARE, Solo, TreeNoise, native_noises
from tests.oracles.growth import draft as drafted
from tests.oracles.networks import TorchRecurrent
from tests.tiny import tiny_model

_native = pytest.importorskip("forerun._native")

SPEC = "mlp_speculator:model=untrained,min_chance=0++recycling:table=none,min_chance=0.001"
MODEL = tiny_model(3, sharpness=3.0)
TARGET = Target(MODEL, None, max_num_seqs=4, max_len=256)


def network(kind=recurrent):
    weights, model = weights_of(cell="lstm", tie_lstm_embs=True), target()
    return kind(weights, model, 32) if kind is recurrent else kind(weights, model)


def draft(net, evidence, doubt, num_nodes=9, noises=()):
    tokens = [text[-1] for text in ngrams.TEXTS]
    rows = hidden(len(ngrams.TEXTS))
    if not isinstance(net, TorchRecurrent):
        noises = native_noises(noises)
    request = Solo(tokens, [num_nodes] * len(ngrams.TEXTS), 4, 0.01, doubt, evidence, noises)
    request.states = rows
    return drafted(net, request)


NOISES = [
    TreeNoise(Noise(3), 40),
    TreeNoise(Noise(4, 1), 7, temperature=0.7, top_p=0.9, top_k=4),
    None,
]
"""The requests of two texts sample, that of the third is greedy."""


@pytest.mark.parametrize("noises", [(), NOISES], ids=["greedy", "sampled"])
@pytest.mark.parametrize("doubt", [0.0, 0.3, 0.6])
def test_the_native_tree_is_the_oracles(doubt, noises):
    trees = draft(network(), ngrams.native(), doubt, noises=noises)
    expected = draft(network(TorchRecurrent), ngrams.oracle(), doubt, noises=noises)
    for tree, other in zip(trees, expected, strict=True):
        assert tree[:2] == other[:2]
        assert tree[2] == pytest.approx(other[2], abs=1e-4)


def test_without_doubt_the_tables_guess_alone_and_with_any_the_network_adds():
    texts, shared, file, live = known = ngrams.parts()
    evidence = _native.TextNGramModel(*known)
    alone = _native.grow_trees(texts, shared, file, live, [9] * 3, 0.01)
    assert draft(network(), evidence, 1.0) == alone
    assert draft(network(), evidence, 0.0) != alone


def test_a_text_gets_the_same_tree_alone_and_in_company():
    texts, shared, file, live = known = ngrams.parts()
    evidence = _native.TextNGramModel(*known)
    together = draft(network(), evidence, 0.2)
    rows, net = hidden(3), network()
    for i, text in enumerate(ngrams.TEXTS):
        one = _native.TextNGramModel([texts[i]], shared, file, live)
        request = Solo([text[-1]], [9], 4, 0.01, 0.2, one, rows=[i], states=rows)
        assert drafted(net, request) == [together[i]]


def test_a_chance_is_the_mean_of_both():
    net, known = network(), ngrams.oracle()
    context, model = known.context(0), known.model(0)
    tables = model.next(model.root(context))
    tokens, parents, probabilities = draft(net, ngrams.native(), 0.0, 40)[0]
    request = Solo([text[-1] for text in ngrams.TEXTS], [40] * 3, 1, 0.0, states=hidden(3))
    alone = drafted(net, request)[0]
    says = {t: p for t, parent, p in zip(*alone, strict=True) if parent < 0}
    roots = {
        t: p for t, parent, p in zip(tokens, parents, probabilities, strict=True) if parent < 0
    }
    assert len(roots) > 3
    for token, p in roots.items():
        mean = SHARE * says.get(token, 0.0) + (1 - SHARE) * tables.get(token, 0.0)
        assert p == pytest.approx(mean)


@pytest.mark.parametrize("order", [1, -1])
def test_greedy_tokens_stay_and_the_two_are_one(order):
    spec = "++".join(SPEC.split("++")[::order])
    drafter = DrafterSpec.of(spec).build(TARGET)
    assert isinstance(drafter, Cascade)
    engine = engine_for(MODEL, drafter)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(plain(MODEL, LOOPING, GREEDY))
    assert 0 < engine.stats.accepted < engine.stats.drafted
