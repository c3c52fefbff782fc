"""A card that is full: one line where a model or its cache does not fit, and one request that ends in a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError, DeviceMemoryError, ForerunError, LoadError
from forerun.gpu import cache, decoder, load
from tests.gpu.oracle import DEVICE
from tests.native.models import GATED, random_weights, text

CONFIG = replace(GATED, num_layers=1)
WEIGHTS = random_weights(CONFIG, "q4_1")


def full(*given: object, **named: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def said(error: pytest.ExceptionInfo[ForerunError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_weights_that_do_not_fit_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder.Stack, "pack", full)
    with pytest.raises(LoadError) as error:
        load.load(CONFIG, WEIGHTS.items(), device=DEVICE)
    assert "has no memory for the weights" in said(error)
    assert "forerun plan" in said(error)
    assert said(error).endswith("use --device cpu")


def test_keys_and_values_that_do_not_fit_are_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load.load(CONFIG, WEIGHTS.items(), device=DEVICE)
    monkeypatch.setattr(cache.GpuCache, "_layer", full)
    with pytest.raises(CapacityError) as error:
        model.new_cache(4, 512)
    assert "no memory for 32 blocks of keys and values" in said(error)
    assert said(error).endswith("or use --device cpu")


def test_a_pass_that_does_not_fit_leaves_the_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load.load(CONFIG, WEIGHTS.items(), device=DEVICE)
    rows = Batch((Segment(0, 0, text(2)),))
    room = model.new_cache(1, 512, "int8")
    with monkeypatch.context() as patch:
        patch.setattr(decoder.GpuDecoder, "launch", full)
        with pytest.raises(DeviceMemoryError) as error:
            model.forward(rows, room)
    assert "has no memory left for a pass of 2 rows" in said(error)
    assert "--max-num-seqs" in said(error)
    assert room.length(0) == 0
    expected = model.forward(rows, model.new_cache(1, 512, "int8")).last
    assert (model.forward(rows, room).last == expected).all()
