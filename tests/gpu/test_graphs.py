"""A graph's launches depend on its shape alone, and rows that fill it up change no bit: shown without a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forerun.core.batch import Batch, Segment
from forerun.gpu import decoder
from forerun.gpu import load as room
from forerun.gpu.graphs import Graphs, run_starts_upto
from forerun.gpu.passes import run_starts
from forerun.model.model import Hidden
from tests.gpu.oracle import Both, same
from tests.native.models import EXPERTS, GATED, random_weights, text

TREE = (-1, 0, 0, 1, 3)
KINDS = {
    "q4_1": (replace(GATED, num_layers=1), "q4_1"),
    "experts": (replace(EXPERTS, num_layers=1, layers=EXPERTS.layers[1:]), "q8_0"),
}


def model(kind: str = "q4_1") -> Both:
    config, form = KINDS[kind]
    models = Both.of(config, random_weights(config, form, has_biases=True), room)
    models.gpu.graphs = Graphs(models.gpu)
    return models


@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_trees_of_graphs_have_the_bits_of_the_cpu(kind: str) -> None:
    """Five rows in a graph of eight over the end of a chunk, two of another sequence beside them, then one row."""
    models = model(kind)
    caches = models.caches("int8", 2)
    models.read(caches, 0, text(62))
    models.read(caches, 1, text(30, 4))
    tree = Segment(0, 62, text(5, 1), TREE)
    assert models.compare(caches, tree, Segment(1, 30, text(2, 5)), keep=(0, 1, 3, 4))
    assert models.compare(caches, Segment(0, 66, text(1, 2)), keep=(0,))
    assert models.compare(caches, Segment(0, 67, text(1, 3)), keep=(0,))
    graphs = [*models.gpu.graphs._found[caches[1]].values()]
    assert [graph.given.shape[0] for graph in graphs] == [8, 1]


def launches_of(model: Both, pass_: Batch, cache, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What a pass launches: grids, places and numbers."""
    from triton.runtime.interpreter import GridExecutor

    call, found = GridExecutor.__call__, []

    def noted(self, *given, **named):
        values = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given]
        found.append((self.fn.__name__, self.grid, *values, *named.items()))
        return call(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", noted)
        model.gpu.forward(pass_, cache)
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a card a graph is replayed, not launched")
def test_passes_of_a_shape_launch_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, trees, sequences and contexts differ; what is launched, and where it reads and writes, does not."""
    models = model()
    caches = models.caches("int8", 2)
    models.read(caches, 0, text(62))
    models.read(caches, 1, text(30, 4))
    passes = (
        Batch((Segment(0, 62, text(5, 1), TREE),)),
        Batch((Segment(1, 30, text(6)),)),
        Batch((Segment(1, 30, text(3)), Segment(0, 62, text(4, 1), (-1, 0, 0, 2)))),
    )
    first, *others = (
        launches_of(models, each, caches[1], monkeypatch) for each in (passes[0], *passes)
    )
    assert len(first) > 10
    assert all(each == first for each in others)


def test_one_copy_brings_a_pass_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    models = model()
    cache = models.gpu.new_cache(1, 512, "int8")
    models.gpu.forward(Batch((Segment(0, 0, text(3)),)), cache)
    copies, copy = [], torch.Tensor.copy_

    def noted(self, *given, **named):
        copies.append(self.data_ptr())
        return copy(self, *given, **named)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    models.gpu.forward(Batch((Segment(0, 0, text(4)),)), cache)
    (graph,) = models.gpu.graphs._found[cache].values()
    assert copies == [graph.record.data_ptr()]


def test_states_are_kept_when_others_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a graph, of a pass launched by itself, and of one in parts; read late, they are what they were."""
    models = model()
    cache = models.gpu.new_cache(1, 512, "int8")
    monkeypatch.setattr(decoder, "ROWS", 33)

    def states(tokens: tuple[int, ...]) -> Hidden:
        return models.gpu.forward(Batch((Segment(0, 0, tokens),)), cache, (0,))

    sizes = (3, 33, 40)
    old = [states(text(size)) for size in sizes]
    for size in sizes:
        states(text(size, 7))
    native = models.native.new_cache(1, 512, "int8")
    for size, found in zip(sizes, old, strict=True):
        expected = models.native.forward(Batch((Segment(0, 0, text(size)),)), native, (0,))
        assert all(map(same, (found.last, *found.aux), (expected.last, *expected.aux)))


def test_larger_passes_and_longer_paths_are_launched_by_themselves() -> None:
    models = model()
    caches = models.caches("int8")
    assert models.compare(caches, Segment(0, 0, text(33)), keep=range(33))
    assert not models.gpu.graphs._found.get(caches[1])
    assert models.compare(caches, Segment(0, 33, text(2)))
    assert models.gpu.graphs._found.get(caches[1])


def test_runs_of_a_graph_begin_where_those_of_a_pass_do() -> None:
    for num_chunks in (1, 2, 5, 70, 300):
        starts = run_starts(num_chunks)
        assert run_starts_upto(len(starts) - 1)[:-1] == starts[:-1]
        assert len(run_starts_upto(64)) == 65
