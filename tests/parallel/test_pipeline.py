"""A model cut between layers has the bits of the whole one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.core.batch import Batch, Segment
from forerun.core.errors import LoadError
from forerun.model.backends import native
from forerun.model.config import LayerConfig
from forerun.model.loader import load_model, read_config
from forerun.model.packed import fill as packing
from forerun.model.random_model import random_config
from forerun.parallel.pipeline import Stage, stages
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("forerun._native")

CHAIN = Segment(0, 0, tuple(range(1, 13)))
TREE = Segment(0, 0, (5, 6, 7, 8, 9), (-1, 0, 0, 2, 1))


@pytest.mark.parametrize("segment", [CHAIN, TREE])
def test_rows_that_go_through_the_stages_have_the_bits_of_one_pass(
    tiny_gguf: Path, segment: Segment
) -> None:
    checkpoint = open_checkpoint(tiny_gguf)
    config, arch = read_config(checkpoint)
    whole = load_model(checkpoint)
    assert isinstance(whole, native.NativeDecoder)
    cache = whole.new_cache(1, 64)
    cache.open([0] * 20)
    wanted = whole.forward(Batch((segment,)), cache, (0, 1))

    rows = whole.embed(np.array(segment.tokens))
    found, tapped = rows, []
    for rank, layers in enumerate(stages(config, 2)):
        stage = Stage(config, layers, rank)
        packing.fill(stage, stage.cut(checkpoint, arch), stage.names())
        own = stage.new_cache(1, 64)
        own.open([0] * 20)
        own.reserve(0, 20)
        found, rows, taps = stage.run(own, [segment], rows, (0, 1))
        tapped += [*taps]
    assert np.array_equal(found, wanted.last)
    assert all(np.array_equal(a, b) for a, b in zip(tapped, wanted.taps, strict=True))


def test_stages_hold_every_layer_once_and_the_last_ones_are_no_smaller() -> None:
    for size in range(1, 8):
        config = random_config(num_layers=7)
        found = stages(config, size)
        assert [i for layers in found for i in layers] == list(range(7))
        assert min(map(len, found)) == len(found[0]) >= 1


def test_models_that_cannot_be_parted_are_refused_by_name() -> None:
    config = random_config()
    with pytest.raises(LoadError, match="--pipeline-parallel-size 3 is more than the model's 2"):
        stages(config, 3)
    shared = (LayerConfig(config.rope), LayerConfig(config.rope, shares_kv_of=0))
    with pytest.raises(LoadError, match="has layers that share keys and values, which a pipeline"):
        stages(replace(config, layers=shared), 2)
