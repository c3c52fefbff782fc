"""A draft of a shape of its own: it learns from nothing, and what is written is what was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.lab.train import new_draft
from forerun.lab.train.draft_model import MODEL
from forerun.lab.train.new_draft import NewDraftLearner, config_of, shape_of
from forerun.lab.train.trainer import Trainer, TrainSettings
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.lab.train.test_draft_model import reader
from tests.lab.train.test_trainer import IDS, SETTINGS, counted, counting_model
from tests.model.tiny import load_torch


def trainer(folder: Path, settings: TrainSettings) -> Trainer:
    """Of a small draft for the model that counts."""
    target = counting_model()
    config = config_of(target.config, 32, 1, 1)
    shape = shape_of(config, target.config, len(IDS))
    learner = NewDraftLearner(target, 2, config, shape, None, 0, seed=1)  # type: ignore[arg-type]
    return Trainer(learner, target, IDS, settings, reader(target, folder), folder, origin={})


def test_it_learns_what_the_target_says(tmp_path: Path) -> None:
    run = trainer(tmp_path, SETTINGS)
    before = run.acceptance(counted(8)).match[0]
    for _ in run.run((), counted(60), counted(8)):
        pass
    assert before < 0.2
    assert run.acceptance(counted(8)).match[0] > 0.3


def test_on_text_it_learns_without_the_target(tmp_path: Path) -> None:
    run, held_out = trainer(tmp_path, replace(SETTINGS, stages=(1, 0))), counted(8)
    for _ in run.run(counted(60), (), held_out):
        pass
    assert run.read.num_computed == sum(len(reply.tokens) - 1 for reply in held_out), (
        "to measure it"
    )
    assert run.acceptance(held_out).match[0] > 0.3


def test_what_is_written_is_what_was_trained(default_model: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    target = load_model(checkpoint)
    config = config_of(target.config, 64, 2, 2)
    shape = shape_of(config, target.config, 100)
    assert shape.cost < 0.01
    learner = NewDraftLearner(target, 3, config, shape, checkpoint, 5, seed=1)
    ids, named = np.arange(100), {"tokenizer": "a vocabulary", "name": "a model"}
    learner.write(tmp_path, learner.net.state_dict(), ids, named, ())
    draft = load_torch(open_checkpoint(tmp_path / MODEL))
    assert draft.config == config
    tokens = tuple(range(40, 60))
    last = draft.forward(Batch((Segment(0, 0, tokens),)), draft.new_cache(1, 32), ()).last
    with torch.no_grad():
        outputs = learner.net(torch.from_numpy(target.embed(np.array(tokens)))).numpy()
    expected = outputs @ target.head_weights(ids).T
    np.testing.assert_allclose(draft.head(last)[:, ids], expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((100, 2, 2), "--hidden must be a multiple of 32 for each of the 2 --heads, got 100"),
        ((64, 0, 1), "--layers must be at least 1, got 0"),
    ],
)
def test_sizes_that_cannot_be_are_told(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(counting_model().config, *sizes)
    assert new_draft.config_of(counting_model().config, 64, 1, 1).head_dim == 64
