"""Weights that are mapped: they lie in the file or move to memory beside the first passes, bit for bit the same."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import threading
import weakref
from pathlib import Path

import numpy as np

from forerun.core import system
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.packed.fill import wait_for_move
from tests.arrays import same_bits
from tests.model.packed.models import FAMILIES, TOKENS, UNEVEN, load, only_file, saved
from tests.model.tiny import prefill

pytestmark = [
    pytest.mark.skipif(native.reason() is not None, reason="no native kernels"),
    pytest.mark.usefixtures("cache"),
]


@pytest.mark.parametrize("rounding", [{}, {"quant": "int4"}, {"head_bits": 4}])
@pytest.mark.parametrize("family", [*FAMILIES, *UNEVEN])
def test_mapped_weights_say_the_same_and_lie_in_the_file(family, rounding, tmp_path) -> None:
    folder = saved(tmp_path, family)
    expected = prefill(load(folder, **rounding, weight_cache=False), TOKENS)
    first = load(folder, **rounding, mmap=True)
    second = load(folder, **rounding, mmap=True)
    assert same_bits(prefill(first, TOKENS), expected)
    assert same_bits(prefill(second, TOKENS), expected)
    for model in (first, second):
        lie_there = mapped(model, only_file())
        assert sum(lie_there) > len(lie_there) / 2  # what is not aligned is copied
    path_of = only_file()
    path_of.unlink()  # whoever maps it keeps it
    assert same_bits(prefill(second, TOKENS), expected)


def mapped(model: NativeDecoder, path: Path) -> list[bool]:
    """Whether each matrix lies in a mapping of the file."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [[int(at, 16) for at in row[0].split("-")] for row in maps if row[-1] == str(path)]
    data = [arrays[0] for _, form, _, arrays in model.packed() if form is not None]
    return [any(low <= array.ctypes.data < high for low, high in ranges) for array in data]


def moved() -> None:
    """Wait until no weights move any more."""
    for thread in threading.enumerate():
        if thread.name == "forerun-weights":
            thread.join()


@pytest.mark.parametrize("family", [*FAMILIES, *UNEVEN])
def test_weights_that_move_to_memory_beside_passes_change_no_bit(family, tmp_path) -> None:
    folder = saved(tmp_path, family)
    expected = prefill(load(folder), TOKENS)
    model = load(folder)
    while "forerun-weights" in [thread.name for thread in threading.enumerate()]:
        assert same_bits(prefill(model, TOKENS), expected)
    assert not any(mapped(model, only_file()))
    assert same_bits(prefill(model, TOKENS), expected)


def test_the_first_head_rows_of_a_model_are_its_own_wherever_they_move(tmp_path) -> None:
    folder = saved(tmp_path)
    load(folder)
    model = load(folder, mmap=True)
    part = model.native.first_head_rows(20)
    hidden = np.ones((3, model.config.hidden_size), np.float32)
    expected = model.head(hidden)[:, :20]
    for name, *_ in [*model.packed()]:
        model.move_to_memory(name)
    assert not any(mapped(model, only_file()))
    logits = np.empty((3, 20), np.float32)
    part.head(hidden, logits)
    assert same_bits(logits, expected)


def test_a_model_may_go_while_its_weights_move(tmp_path) -> None:
    folder = saved(tmp_path)
    for _ in range(50):
        prefill(load(folder), TOKENS)
    moved()
    assert str(only_file()) not in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not system.HAS_HUGE_PAGES, reason="weights stay where they are mapped")
def test_who_lets_go_of_a_model_can_wait_for_the_weight_that_moves(tmp_path, monkeypatch) -> None:
    """The decoder is freed then, not at some time after."""
    folder, moves, may_move = saved(tmp_path), threading.Event(), threading.Event()
    move = NativeDecoder.move_to_memory

    def move_later(decoder: NativeDecoder, name: str) -> None:
        moves.set()
        may_move.wait(60)
        move(decoder, name)

    monkeypatch.setattr(NativeDecoder, "move_to_memory", move_later)
    load(folder)
    model = weakref.ref(load(folder))
    assert moves.wait(60)
    assert model() is not None
    threading.Timer(0.05, may_move.set).start()
    wait_for_move()
    assert model() is None
    moved()


def test_a_changed_file_is_not_mapped(tmp_path) -> None:
    folder = saved(tmp_path)
    expected = prefill(load(folder), TOKENS)
    path = only_file()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    assert same_bits(prefill(load(folder, mmap=True), TOKENS), expected)
    assert only_file().read_bytes() == whole
