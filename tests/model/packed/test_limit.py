"""The folder of packed weights keeps its limit, and what fails or is deleted there stops no model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import errno
import fcntl
import os
from collections import namedtuple

from forerun.core.errors import ConfigError
from forerun.model.kernels import native
from forerun.model.packed import folder as packed_folder
from tests.arrays import same_bits
from tests.model.packed.models import FAMILIES, TOKENS, files, load, only_file, saved
from tests.model.tiny import prefill

pytestmark = [
    pytest.mark.skipif(native.reason() is not None, reason="no native kernels"),
    pytest.mark.usefixtures("cache"),
]


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
