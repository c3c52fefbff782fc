"""What is kept for the next process: nothing is lost but what the size drops, and nothing on disk stops a drafter."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import files
from forerun.core.config import EngineConfig
from forerun.drafters import recycling
from forerun.drafters.recycling.persistent_table import PersistentTable
from forerun.drafting import learned as learned_files
from forerun.drafting.base import Target
from forerun.drafting.learned import entries, path_of, remove
from forerun.drafting.spec import DrafterSpec
from tests.drafters.helpers import OURS, Words
from tests.drafters.test_recycling import begun, empty, proposed
from tests.oracles.token_table import ENTRY, SET_NBYTES

_native = pytest.importorskip("forerun._native")

MODEL = Path("models/tiny.gguf")
NBYTES = 64 * SET_NBYTES


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    return tmp_path


class Process:
    """A process that learns."""

    def __init__(self, nbytes: int = NBYTES, vocabulary: str = OURS) -> None:
        new_table = partial(_native.LiveTable, 1, nbytes)
        self.live = new_table()
        self.learned = PersistentTable(MODEL, vocabulary, self.live, new_table)

    def learn(self, context: int, token: int) -> None:
        self.live.learn([context], [token], [1.0])


def known(live) -> dict[int, tuple[list[int], float]]:
    rows = np.frombuffer(live.entries(), ENTRY)
    return {int(row["hash"]): (row["tokens"].tolist(), float(row["total"])) for row in rows}


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), st.tuples(st.integers(0, 9), st.just(1)))),
    max_size=30,
)


@given(STEPS)
def test_processes_that_run_at_once_lose_nothing_of_each_other(tmp_path_factory, steps) -> None:
    """Each step one of three learns something, or keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        processes, contexts = [Process() for _ in range(3)], [set() for _ in range(3)]
        for who, learned in steps:
            if learned is None:
                processes[who].learned.save()
            else:
                processes[who].learn(10 * who + learned[0], learned[1])
                contexts[who].add(10 * who + learned[0])
        for process in processes:
            process.learned.save()
        merged = known(Process().live)
        in_memory = {k: v for process in processes for k, v in known(process.live).items()}
        assert merged == in_memory
        assert len(merged) == sum(map(len, contexts))


def test_of_a_context_that_two_learned_the_later_one_counts() -> None:
    first, second = Process(), Process()
    first.learn(5, 1)
    second.learn(5, 2)
    first.learned.save()
    second.learned.save()
    assert known(Process().live) == known(second.live)
    first.learned.save()  # it has learned nothing since
    assert known(Process().live) == known(second.live)
    first.learn(6, 3)
    first.learned.save()  # of 5 it has still learned nothing since
    assert known(Process().live) == known(first.live) | known(second.live)
    first.learn(5, 3)
    first.learned.save()
    assert known(Process().live) == known(first.live)


def test_the_file_is_no_larger_than_the_table_and_the_oldest_goes_first() -> None:
    nbytes = 2 * SET_NBYTES
    for first in range(0, 200, 10):
        process = Process(nbytes)
        for context in range(first, first + 10):
            process.learn(context, 1)
        process.learned.save()
        assert process.learned.path.stat().st_size <= nbytes + 1024
    one = Process(nbytes)
    one.learn(199, 1)
    assert known(one.live).keys() <= known(process.live).keys()


def _learn_many(first: int) -> None:
    for start in range(first, first + 100, 10):
        process = Process(1 << 20)
        for context in range(start, start + 10):
            process.learn(context, 1)
        process.learned.save()


def test_real_processes_lose_nothing(cache) -> None:
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=_learn_many, args=(100 * i,)) for i in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert len(known(Process(1 << 20).live)) == 300
    assert {p.name for p in learned_files.folder().iterdir()} == {".lock", path_of(MODEL).name}


def build(**options) -> recycling.Recycling:
    target = Target(None, Words(), max_num_seqs=1, max_len=64, path=MODEL, **options)
    return recycling.build(recycling.Options(table="none", table_mb=0.1), target)


def teach(drafter: recycling.Recycling) -> None:
    drafter.end(begun(drafter, [1, 2], 3, [0.0, 0.0, 0.0, 0.0, 0.9]))


def test_a_drafter_keeps_what_it_learned_when_it_goes_and_the_next_one_knows_it() -> None:
    drafter = build(learn=True)
    teach(drafter)
    assert not path_of(MODEL).exists()
    drafter.learned._file._next_s = 0.0  # some minutes later
    teach(drafter)
    assert path_of(MODEL).exists()
    remove(entries())
    teach(drafter)
    del drafter
    gc.collect()
    (entry,) = entries()
    assert entry.model == MODEL.resolve()
    assert entry.nbytes == entry.path.stat().st_size
    assert stat.S_IMODE(entry.path.stat().st_mode) == 0o600

    after = begun(second := build(learn=True), [1], 2, seq_id=7)
    assert proposed(second, after).tokens[:1] == (4,)
    other = build()
    assert proposed(other, begun(other, [1], 2)).tokens == ()
    assert remove(entries()) == entry.nbytes
    assert entries() == []


def test_it_is_kept_when_python_ends(cache) -> None:
    script = (
        "from tests.drafters.test_learned import *; drafter = build(learn=True); teach(drafter)"
    )
    environment = os.environ | {
        "FORERUN_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)
    assert len(known(Process().live)) == 2  # after one token, and after two


def test_without_being_asked_nothing_is_kept() -> None:
    drafter = build()
    teach(drafter)
    del drafter
    gc.collect()
    assert not learned_files.folder().exists()
    assert empty().learned is None


BROKEN: dict[str, Callable[[Path], object]] = {
    "torn": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "part of an entry": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "another version": lambda p: p.write_bytes(p.read_bytes().replace(b"tokens 1", b"tokens 9", 1)),
    "empty": lambda p: p.write_bytes(b""),
    "no JSON": lambda p: p.write_bytes(learned_files._MAGIC + b"{\n"),
    "a list": lambda p: p.write_bytes(learned_files._MAGIC + b"[]\n"),
    "deep": lambda p: p.write_bytes(learned_files._MAGIC + b"[" * 60_000 + b"\n"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_read_is_told_once_and_written_anew(kind: str, caplog) -> None:
    process = Process()
    process.learn(1, 2)
    process.learned.save()
    BROKEN[kind](path_of(MODEL))
    with caplog.at_level(logging.WARNING):
        process = Process()
        process.learn(3, 4)
        process.learned.save()
    (message,) = caplog.messages
    assert "cannot be used" in message
    assert "\n" not in message
    assert known(Process().live) == known(process.live)


def test_what_was_learned_with_another_tokenizer_is_not_used(caplog) -> None:
    process = Process(vocabulary="another")
    process.learn(1, 2)
    process.learned.save()
    assert known(Process().live) == {}
    assert "another tokenizer" in caplog.text


@pytest.mark.parametrize("broken", ["replace", "locked"])
def test_a_full_disk_is_told_once_and_what_was_there_stays(monkeypatch, caplog, broken) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    process = Process()
    process.learn(1, 2)
    process.learned.save()
    before = path_of(MODEL).read_bytes()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(files, broken, full)
        for context in range(3, 6):
            process.learn(context, 4)
            process.learned.save()
    assert path_of(MODEL).read_bytes() == before
    (message,) = caplog.messages
    assert "No space left" in message
    process.learned.save()  # there is room again
    assert known(Process().live) == known(process.live)


def test_a_cache_that_is_a_file_is_told(monkeypatch, tmp_path, caplog) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    drafter = build(learn=True)
    teach(drafter)
    del drafter
    gc.collect()
    assert len(caplog.messages) == 1


def test_files_without_a_model_are_listed_and_go() -> None:
    assert entries() == []
    learned_files.folder().mkdir(parents=True)
    (learned_files.folder() / "odd.learned").write_text("nothing")
    (entry,) = entries()
    assert entry.model is None
    assert remove([entry]) == 7
    assert remove([entry]) == 7  # someone else has deleted it


@pytest.mark.parametrize(
    ("drafter", "keeps"),
    [("recycling", True), ("suffix", False), ("none", False), ("recycling++suffix", True)],
)
def test_it_is_known_which_drafters_keep_something(drafter: str, keeps: bool) -> None:
    assert (
        DrafterSpec.of_config(EngineConfig(model="tiny", drafter=drafter)).is_persistent() is keeps
    )
