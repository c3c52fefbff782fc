"""Packed weights on disk: the next start reads them, and whatever is wrong with them costs only time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.packed import file as packed
from forerun.model.packed import folder as packed_folder
from tests.arrays import same_bits
from tests.model.packed.models import (
    FAMILIES,
    TOKENS,
    UNEVEN,
    files,
    load,
    only_file,
    packed_file,
    saved,
    serves,
)
from tests.model.tiny import prefill

pytestmark = [
    pytest.mark.skipif(native.reason() is not None, reason="no native kernels"),
    pytest.mark.usefixtures("cache"),
]

SAVE_MEANWHILE = packed.PackedFile.save_meanwhile


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
        file = packed_file(folder)
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


def test_starts_at_the_same_time_do_not_disturb_each_other(tmp_path) -> None:
    folder = saved(tmp_path)
    expected = prefill(load(folder, weight_cache=False), TOKENS)
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: load(folder), range(8)))
    assert all(same_bits(prefill(model, TOKENS), expected) for model in models)
    assert serves(folder, only_file())


def test_a_file_that_is_not_ours_to_read_is_listed_and_stops_nothing(tmp_path, cache) -> None:
    cache.mkdir(parents=True)
    (cache / "strange.packed").write_bytes(b"what")
    assert [model for _, model in packed_folder.copies()] == [None]
    load(saved(tmp_path))
    assert [model for _, model in packed_folder.copies()] == [None, tmp_path / "llama"]
