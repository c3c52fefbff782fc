"""Packed weights on disk: the next start reads them, and whatever is wrong with them costs only time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.core import system
from forerun.core.errors import ConfigError, LoadError
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.loader import load_model, read_config
from forerun.model.packed import file as packed
from forerun.model.packed import folder as packed_folder
from forerun.model.packed.fill import wait_for_move
from forerun.weights.checkpoint import open_checkpoint
from tests.arrays import same_bits
from tests.model.tiny import hf_model, prefill
from tests.native.test_families import WIDTHS

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
FAMILIES = {
    "llama": {"head_dim": 16},  # biases
    "qwen3": {},  # norms of heads
    "opt": {"num_attention_heads": 2},  # layer norms, positions
}
UNEVEN = {"gemma4_moe": {"hidden_size": 64, **WIDTHS["gemma4_moe"]}}
"""With vectors of one number and of five."""


SAVE_MEANWHILE = packed.PackedFile.save_meanwhile


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, which takes small models, too."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed, "MIN_NBYTES", 0)
    monkeypatch.setattr(packed.PackedFile, "save_meanwhile", packed.PackedFile.save)
    return tmp_path / "cache" / "packed"


def saved(folder: Path, family: str = "llama") -> Path:
    hf_model(family, **{**FAMILIES, **UNEVEN}[family]).save_pretrained(folder / family)
    return folder / family


def load(folder: Path, **options) -> NativeDecoder:
    options = {"weight_cache": True, **options}
    model = load_model(open_checkpoint(folder), backend="native", **options)
    assert isinstance(model, NativeDecoder)
    return model


def files() -> list[Path]:
    """What lies in the cache, sorted by name."""
    return sorted(entry.path for entry in packed_folder.default_folder().entries())


def only_file() -> Path:
    (path,) = files()
    return path


def serves(folder: Path, path: Path) -> bool:
    """Whether the file gives a decoder all its weights."""
    config, _ = read_config(open_checkpoint(folder))
    file = packed.PackedFile.of(folder, open_checkpoint(folder).files, quant="none", head_bits=None)
    return replace(file, name=path.name).load(NativeDecoder(config, num_threads=1))


def test_the_first_answer_does_not_wait_for_the_copy(cache, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packed.PackedFile, "save_meanwhile", SAVE_MEANWHILE)
    write, goes_on = packed.PackedFile._write, Event()

    def late(self, decoder) -> None:
        assert goes_on.wait(60)
        write(self, decoder)

    monkeypatch.setattr(packed.PackedFile, "_write", late)
    folder = saved(tmp_path)
    first = load(folder)
    answered = prefill(first, TOKENS)
    assert not cache.exists()
    goes_on.set()
    packed.finish_writing()
    assert cache.exists()
    monkeypatch.setattr(NativeDecoder, "add", None)
    assert same_bits(prefill(load(folder), TOKENS), answered)


def test_a_copy_under_way_when_the_program_ends_is_written(tmp_path) -> None:
    """The end waits for the thread that writes, and it needs none that cannot be started any more."""
    program = (
        "import sys, threading, time, numpy; from pathlib import Path; from forerun.model.packed import file\n"
        "class Weights: packed = lambda self: [('a', None, (4,), [numpy.zeros(16, numpy.uint8)])]\n"
        "write = lambda: (time.sleep(.3), Path(sys.argv[1]).write_text(file.digest(Weights())))\n"
        "threading.Thread(target=write).start()"
    )
    made = tmp_path / "digest"
    done = subprocess.run([sys.executable, "-c", program, made], capture_output=True, check=True)
    assert done.stderr == b""
    assert len(made.read_text()) == 64


@pytest.mark.parametrize("rounding", [{}, {"quant": "int4"}, {"head_bits": 4}])
@pytest.mark.parametrize("family", [*FAMILIES, *UNEVEN])
def test_the_second_start_packs_nothing_and_says_the_same(
    family, rounding, tmp_path, monkeypatch
) -> None:
    folder = saved(tmp_path, family)
    first = load(folder, **rounding)
    plain = load(folder, **rounding, weight_cache=False)
    monkeypatch.setattr(NativeDecoder, "add", None)
    seen: list[tuple[int, int]] = []
    second = load(folder, **rounding, progress=lambda done, all_: seen.append((done, all_)))
    expected = prefill(plain, TOKENS)
    assert same_bits(prefill(first, TOKENS), expected)
    assert same_bits(prefill(second, TOKENS), expected)
    assert second.nbytes() == first.nbytes()
    assert len(seen) == 1
    assert seen[0][0] == seen[0][1]


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


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_byte_goes_unnoticed(written, data) -> None:
    file, decoder, whole = written
    assert file.load(decoder)
    at = data.draw(st.one_of(st.integers(0, 1500), st.integers(0, len(whole) - 1)))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    file.path.write_bytes(broken)
    assert not file.load(decoder)
    file.path.write_bytes(whole)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[packed.PackedFile, NativeDecoder, bytes]:
    """A packed file, the decoder that it is of, and its bytes."""
    folder = saved(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_CACHE", str(folder / "cache"))
        patch.setattr(packed, "MIN_NBYTES", 0)
        patch.setattr(packed.PackedFile, "save_meanwhile", packed.PackedFile.save)
        decoder = load(folder)
        file = packed.PackedFile.of(
            folder, open_checkpoint(folder).files, quant="none", head_bits=None
        )
        return file, decoder, file.path.read_bytes()


@pytest.mark.parametrize("size", [0, 10, 30, 200, -1])
def test_a_truncated_file_is_packed_again_and_written_over(size, tmp_path) -> None:
    folder = saved(tmp_path)
    expected = prefill(load(folder), TOKENS)
    path = only_file()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert not serves(folder, path)
    assert same_bits(prefill(load(folder), TOKENS), expected)
    assert only_file().read_bytes() == whole


def test_a_longer_file_does_not_serve(written) -> None:
    file, decoder, whole = written
    file.path.write_bytes(whole + bytes(64))
    assert not file.load(decoder)
    file.path.write_bytes(whole)


def test_a_model_that_changed_is_packed_again(tmp_path) -> None:
    folder = saved(tmp_path)
    before = prefill(load(folder), TOKENS)
    model = hf_model("llama", **FAMILIES["llama"])
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    model.save_pretrained(folder)
    after = prefill(load(folder), TOKENS)
    assert not same_bits(after, before)
    assert same_bits(after, prefill(load(folder, weight_cache=False), TOKENS))
    only_file()


def test_a_pipe_in_the_place_of_a_copy_is_written_over(tmp_path) -> None:
    """Without waiting for somebody who writes to it."""
    model = saved(tmp_path)
    first = load(model)
    (path,) = files()
    path.unlink()
    os.mkfifo(path)
    assert same_bits(prefill(first, TOKENS), prefill(load(model), TOKENS))
    assert path.is_file()


def test_what_other_code_has_packed_is_not_used(tmp_path, monkeypatch) -> None:
    folder = saved(tmp_path)
    load(folder)
    assert serves(folder, only_file())
    monkeypatch.setattr(packed, "code_digest", lambda: "other")
    assert not serves(folder, only_file())


def test_each_way_of_rounding_has_its_file(tmp_path) -> None:
    folder = saved(tmp_path)
    for rounding in ({}, {"quant": "int8"}, {"quant": "int4"}, {"quant": "int4", "head_bits": 4}):
        load(folder, **rounding)
    assert len(files()) == 4


def test_without_the_cache_nothing_is_written(tmp_path, cache) -> None:
    load(saved(tmp_path), weight_cache=False)
    assert not cache.exists()


def test_small_models_are_not_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    load(saved(tmp_path))
    assert files() == []


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path, cache) -> None:
    cache.parent.write_text("a file, where the folder should be")
    load(saved(tmp_path))


def test_a_nearly_full_disk_is_left_alone(tmp_path, monkeypatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(packed_folder.shutil, "disk_usage", lambda path: usage(1 << 16))
    load(saved(tmp_path))
    assert files() == []


def test_what_a_killed_start_left_goes_and_a_write_of_now_stays(tmp_path) -> None:
    folder = saved(tmp_path)
    load(folder)
    path = only_file()
    left, writing = (path.with_name(f"{path.name}.{name}") for name in ("left", "writing"))
    for unfinished in (left, writing):
        unfinished.write_bytes(b"half")
    path.unlink()
    with writing.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        load(folder)
        assert files() == [path, writing]


def test_starts_at_the_same_time_do_not_disturb_each_other(tmp_path) -> None:
    folder = saved(tmp_path)
    expected = prefill(load(folder, weight_cache=False), TOKENS)
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: load(folder), range(8)))
    assert all(same_bits(prefill(model, TOKENS), expected) for model in models)
    assert serves(folder, only_file())


def test_clearing_frees_what_was_taken_and_stops_no_one(tmp_path) -> None:
    model = load(saved(tmp_path))
    expected = prefill(model, TOKENS)
    size = only_file().stat().st_size
    load(tmp_path / "llama")
    assert packed_folder.remove(packed_folder.default_folder().entries()) == size
    assert files() == []
    assert same_bits(prefill(model, TOKENS), expected)


def test_the_limit_is_kept_and_the_longest_unused_goes_first(tmp_path, monkeypatch) -> None:
    folders = [saved(tmp_path, family) for family in FAMILIES]
    for folder in folders:
        load(folder)
    sizes = {model: entry.nbytes for entry, model in packed_folder.copies()}
    load(folders[0])  # used again: the second is the longest unused now
    monkeypatch.setenv("FORERUN_CACHE_LIMIT", str(sum(sizes.values())))
    load(folders[0], head_bits=4)
    left = [model for _, model in packed_folder.copies()]
    assert folders[1] not in left
    assert left.count(folders[0]) == 2
    assert sum(entry.nbytes for entry, _ in packed_folder.copies()) <= sum(sizes.values())


@pytest.mark.parametrize(("limit", "says"), [("1kB", "the limit is 1 kB"), ("0", "")])
def test_a_file_above_the_limit_is_not_written_and_nothing_goes_for_it(
    limit, says, tmp_path, monkeypatch, caplog
) -> None:
    load(saved(tmp_path))
    before = files()
    monkeypatch.setenv("FORERUN_CACHE_LIMIT", limit)
    load(tmp_path / "llama", quant="int4")
    assert files() == before
    assert says in caplog.text


def test_a_limit_that_is_no_size_is_an_error_that_names_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE_LIMIT", "lots")
    with pytest.raises(ConfigError, match=r"FORERUN_CACHE_LIMIT: a size is .* got 'lots'"):
        load(saved(tmp_path))
    load(tmp_path / "llama", weight_cache=False)


@pytest.mark.parametrize("call", ["truncate", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_noted_leaves_nothing_behind_and_the_model_runs(
    call, number, tmp_path, monkeypatch, caplog
) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    folder = saved(tmp_path)
    expected = prefill(load(folder, weight_cache=False), TOKENS)
    monkeypatch.setattr(packed_folder.os, call, fails)
    assert same_bits(prefill(load(folder), TOKENS), expected)
    assert files() == []
    assert "packed weights are not kept" in caplog.text
    assert os.strerror(number) in caplog.text


def test_the_copies_of_one_model_can_be_deleted_alone(tmp_path) -> None:
    one, other = saved(tmp_path), saved(tmp_path, "opt")
    for quant in ("none", "int4"):
        load(one, quant=quant)
    load(other)
    assert packed_folder.remove(packed_folder.of_model(one)) > 0
    assert [model for _, model in packed_folder.copies()] == [other]


def test_a_file_that_is_not_ours_to_read_is_listed_and_stops_nothing(tmp_path, cache) -> None:
    cache.mkdir(parents=True)
    (cache / "strange.packed").write_bytes(b"what")
    assert [model for _, model in packed_folder.copies()] == [None]
    load(saved(tmp_path))
    assert [model for _, model in packed_folder.copies()] == [None, tmp_path / "llama"]


INDEX = "model.safetensors.index.json"


def write_index(folder: Path, file: str, source: str = "model.safetensors") -> None:
    """An index to the tensors of `source`: they lie in `file`."""
    with safetensors.safe_open(folder / source, framework="np") as stored:
        names = list(stored.keys())
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}))


def write_other(source: Path, path: Path) -> None:
    """Other weights of the same size."""
    tensors = safetensors.torch.load_file(source)
    for tensor in tensors.values():
        tensor.neg_()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def in_a_subfolder(folder: Path, other: Path) -> Callable[[], object]:
    (folder / "sub").mkdir()
    write_index(folder, "sub/m.safetensors")
    (folder / "model.safetensors").rename(folder / "sub/m.safetensors")
    return lambda: shutil.copy(other, folder / "sub/m.safetensors")


def behind_a_link(folder: Path, other: Path) -> Callable[[], object]:
    """As in the cache of the Hugging Face Hub."""
    (folder / "../blobs").mkdir()
    (folder / "model.safetensors").rename(folder / "../blobs/one")
    shutil.copy(other, folder / "../blobs/two")
    link = folder / "model.safetensors"
    link.symlink_to("../blobs/one")
    return lambda: (link.unlink(), link.symlink_to("../blobs/two"))


def by_another_index(folder: Path, other: Path) -> Callable[[], object]:
    shutil.copy(other, folder / "b.safetensors")
    write_index(folder, "a.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    return lambda: write_index(folder, "b.safetensors", "b.safetensors")


def by_a_single_file(folder: Path, other: Path) -> Callable[[], object]:
    """It goes before an index, which may have been left behind."""
    write_index(folder, "a.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    return lambda: shutil.copy(other, folder / "model.safetensors")


def at_the_same_time(folder: Path, other: Path) -> Callable[[], object]:
    def replace() -> None:
        shutil.copy(other, folder / "model.safetensors")
        stamp()

    def stamp() -> None:
        for path in folder.iterdir():
            os.utime(path, (1, 1))

    stamp()
    return replace


@pytest.mark.parametrize(
    "prepared",
    [in_a_subfolder, behind_a_link, by_another_index, by_a_single_file, at_the_same_time],
)
def test_weights_that_were_replaced_are_packed_again(prepared, tmp_path) -> None:
    folder, other = saved(tmp_path), tmp_path / "other.safetensors"
    write_other(folder / "model.safetensors", other)
    replace = prepared(folder, other)
    before = prefill(load(folder), TOKENS)
    assert serves(folder, only_file())
    replace()
    assert not serves(folder, only_file())
    after = prefill(load(folder), TOKENS)
    assert same_bits(after, prefill(load(folder, weight_cache=False), TOKENS))
    assert not torch.equal(after, before)


READ = ["config.json", "model.safetensors", "quant_config.json", "quantize_config.json"]


@pytest.mark.parametrize("name", READ)
def test_the_key_has_every_file_that_was_read(name, tmp_path) -> None:
    """Also one that was looked for: it may come."""
    folder = saved(tmp_path)
    before = open_checkpoint(folder).files
    path = folder / name
    if path.exists():
        os.chmod(path, 0o600)
    else:
        path.write_text("{}")
    assert open_checkpoint(folder).files != before
    assert [Path(each.path).name for each in before] == READ


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x", "a/../../x", r"..\x", r"C:\x", "", None, 5, "a\0b", [1]]
)
def test_an_index_leads_to_files_of_its_folder(name, tmp_path) -> None:
    folder = saved(tmp_path)
    write_index(folder, name)
    (folder / "model.safetensors").rename(tmp_path / "x.safetensors")
    with pytest.raises(LoadError, match=r"a file in the model's folder is needed"):
        open_checkpoint(folder)
