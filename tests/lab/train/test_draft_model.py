"""A draft that is cut from its target: it begins as those layers, learns, and costs what is said."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.lab.torch.decoder import Decoder
from forerun.lab.train import draft_model, trim
from forerun.lab.train.draft_model import DraftModelLearner, shape_for
from forerun.lab.train.states import StateReader
from forerun.lab.train.trainer import Trainer
from forerun.model.config import RopeConfig
from forerun.model.random_model import random_config
from tests.lab.torch.random_tensors import random_tensors
from tests.lab.train.test_trainer import (
    FIRST,
    IDS,
    LENGTH,
    SETTINGS,
    VOCAB,
    counted,
    counting_model,
)
from tests.tiny import tiny_model

DEPTH = 2
CONFIG = random_config(VOCAB, 4)


def test_with_all_layers_it_is_the_target() -> None:
    weights = random_tensors(0, CONFIG, 1.0)
    target = Decoder(CONFIG, weights)
    learner = DraftModelLearner(target, DEPTH, draft_model.DraftShape((0, 1, 2, 3), 1.0), weights)
    tokens = tuple(range(3, 20))
    cache = target.new_cache(1, 32)
    expected = target.forward(Batch((Segment(0, 0, tokens),)), cache, ()).last
    with torch.no_grad():
        outputs = learner.net(torch.from_numpy(target.embed(np.array(tokens))))
    np.testing.assert_allclose(outputs.numpy(), expected, atol=1e-4)


def reader(target, path) -> StateReader:
    return StateReader(
        target, (), all_rows=True, max_len=64, folder=path / "states", max_nbytes=1 << 20
    )


def test_it_learns_what_the_target_says(tmp_path) -> None:
    target = counting_model()
    weights = random_tensors(3, replace(target.config, tied_head=False), 1.0)
    learner = DraftModelLearner(target, DEPTH, draft_model.DraftShape((0, 2), 0.5), weights)
    read = reader(target, tmp_path)
    run = Trainer(learner, target, IDS, SETTINGS, read, tmp_path, origin={})
    for _ in itertools.islice(run.run((), counted(60), counted(8)), None):
        pass
    acceptance = run.acceptance(counted(8))
    assert acceptance.rows == 8 * (LENGTH - FIRST - DEPTH)
    assert acceptance.match[0] > 0.3
    assert acceptance.match[0] == pytest.approx(acceptance.match[1], abs=0.1)  # it reads the text


def test_a_sibling_of_another_width_learns_what_the_target_says(tmp_path) -> None:
    """Its own embedding and head, and the target's probabilities."""
    target = counting_model()
    config = replace(random_config(VOCAB, 2), hidden_size=16, tied_head=False)
    assert config.hidden_size != target.config.hidden_size
    weights = random_tensors(3, config, 1.0)
    sibling = Decoder(config, weights)
    shape = shape_for(config, target.config, 8, 0, 0.9)
    learner = DraftModelLearner(sibling, DEPTH, shape, weights)
    read = reader(target, tmp_path)
    run = Trainer(learner, target, IDS, SETTINGS, read, tmp_path, origin={})
    assert run.head.shape == (len(IDS), config.hidden_size)
    for _ in run.run((), counted(60), counted(8)):
        pass
    assert run.acceptance(counted(8)).match[0] > 0.3


def test_a_sibling_may_keep_all_its_layers() -> None:
    small = random_config(VOCAB, 2)
    assert shape_for(small, CONFIG, 8, 2, 0.9).layers == (0, 1)
    with pytest.raises(ConfigError, match="--layers must be 1 to 2, got 3"):
        shape_for(small, CONFIG, 8, 3, 0.9)
    assert shape_for(small, CONFIG, 8, 2, 0.9).cost < shape_for(CONFIG, CONFIG, 8, 3, 0.9).cost


def test_as_many_layers_are_kept_as_the_cost_allows() -> None:
    shape = shape_for(CONFIG, CONFIG, 8, 0, 0.6)
    assert shape.layers[0] == 0
    assert shape.layers[-1] == CONFIG.num_layers - 1
    assert shape.cost <= 0.6
    assert shape_for(CONFIG, CONFIG, 8, len(shape.layers) + 1, 0.6).cost > 0.6
    assert shape_for(CONFIG, CONFIG, 8, 1, 0.6).layers == (0,)


@pytest.mark.parametrize(
    ("config", "num_layers", "max_cost", "message"),
    [
        (CONFIG, 0, 0.001, "one layer and a head of 8 tokens cost"),
        (CONFIG, 4, 0.6, "--layers must be 1 to 3, got 4"),
        (replace(CONFIG, family="opt", rope=None), 0, 0.6, "Llama's form, this is opt"),
        (replace(CONFIG, rope=RopeConfig(1e4, 8, (2.0,) * 4)), 0, 0.6, "rope scaling"),
    ],
)
def test_what_cannot_be_is_told(config, num_layers, max_cost, message) -> None:
    with pytest.raises(ConfigError, match=message):
        shape_for(config, config, 8, num_layers, max_cost)


def test_what_a_step_costs_is_measured() -> None:
    """Twelve times the layers take longer, on any machine."""
    target, draft = tiny_model(1, num_layers=12), tiny_model(2, num_layers=1)
    ids = np.arange(8)
    assert 0 < draft_model.measured_cost(target, draft, ids) < 0.9
    assert draft_model.measured_cost(draft, target, ids) > 1.1


def test_memory_bound_speed_up() -> None:
    assert trim.mbsu(2.0, 0.1, 5) == pytest.approx(2 / 1.5)


def test_a_step_costs_what_it_reads_of_a_passes_bytes() -> None:
    """A draft in an eighth of the bits reads an eighth; of a cut head less."""
    target = tiny_model(1)
    rounded = SimpleNamespace(config=target.config, nbytes=lambda: target.nbytes() / 8)
    whole = trim.cost_by_bytes(target, target, None)
    assert trim.cost_by_bytes(rounded, target, None) == pytest.approx(whole / 8)
    assert trim.cost_by_bytes(target, target, 8) < whole <= 1
