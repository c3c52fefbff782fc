"""The folder of packed weights against a model of it: any writes and reads, the limit, who goes first."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.core import files
from forerun.model.packed.folder import PackedFolder

LIMIT = 100
NAMES = st.sampled_from([f"{letter}.packed" for letter in "abcdef"])


def write(folder: PackedFolder, name: str, nbytes: int) -> None:
    target = folder.path / name
    with folder.replacing(target, nbytes) as file:
        file.write(bytes(nbytes))


class FolderMachine(RuleBasedStateMachine):
    """The expectation is a list of (name, size), the longest unused first."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = PackedFolder(Path(self.temporary.name) / "packed", LIMIT)
        self.expected: list[tuple[str, int]] = []
        self.clock = 0

    def teardown(self) -> None:
        self.temporary.cleanup()

    def use(self, name: str) -> None:
        """A clock of our own: two real ones in a row may be the same to the file system."""
        self.clock += 1
        os.utime(self.folder.path / name, (self.clock, self.clock))

    @rule(name=NAMES, nbytes=st.integers(1, 120))
    def written(self, name: str, nbytes: int) -> None:
        rest = [*self.expected]
        if nbytes > LIMIT:
            with pytest.raises(OSError, match="the limit is 100 B"):
                write(self.folder, name, nbytes)
            return
        write(self.folder, name, nbytes)
        self.use(name)
        while sum(size for _, size in rest) + nbytes > LIMIT:
            rest.pop(0)
        self.expected = [one for one in rest if one[0] != name]
        self.expected.append((name, nbytes))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.expected))
        self.use(one[0])
        self.expected.remove(one)
        self.expected.append(one)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def removed(self, data: st.DataObject) -> None:
        name, nbytes = data.draw(st.sampled_from(self.expected))
        assert self.folder.remove([self.folder.path / name]) == nbytes
        self.expected.remove((name, nbytes))

    @rule(name=NAMES)
    def killed(self, name: str) -> None:
        """A start that died left a file; it goes with the next removal."""
        (self.folder.path).mkdir(exist_ok=True)
        (self.folder.path / f"{name}.left").write_bytes(b"half")
        assert self.folder.remove([]) == 4

    @invariant()
    def it_is_as_expected(self) -> None:
        listed = [(entry.path.name, entry.nbytes) for entry in self.folder.entries()]
        assert listed == self.expected
        assert sum(nbytes for _, nbytes in listed) <= LIMIT


TestFolder = FolderMachine.TestCase
TestFolder.settings = settings(max_examples=50, stateful_step_count=30)


@given(sizes=st.lists(st.integers(1, 60), min_size=2, max_size=4))
def test_files_that_are_being_written_count_and_never_go(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = PackedFolder(Path(temporary), LIMIT)
        first = folder.replacing(folder.path / "first.packed", sizes[0])
        with first as file:
            for i, nbytes in enumerate(sizes[1:]):
                if sizes[0] + nbytes > LIMIT:
                    with pytest.raises(OSError, match="other starts are writing"):
                        write(folder, f"{i}.packed", nbytes)
                else:
                    write(folder, f"{i}.packed", nbytes)
                assert sum(entry.nbytes for entry in folder.entries()) <= LIMIT
            file.write(bytes(sizes[0]))
        assert (folder.path / "first.packed").stat().st_size == sizes[0]


def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, LIMIT)
    write(folder, "a.packed", 10)
    with pytest.raises(KeyboardInterrupt), folder.replacing(tmp_path / "a.packed", 20):
        raise KeyboardInterrupt
    assert [(e.path.name, e.nbytes) for e in folder.entries()] == [("a.packed", 10)]


def test_a_folder_that_is_locked_for_long_is_an_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.05)
    folder = PackedFolder(tmp_path, LIMIT)
    with (tmp_path / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked by another start"):
            write(folder, "a.packed", 1)


def _write_many(path: Path, letter: str, worst: multiprocessing.Queue) -> None:
    folder = PackedFolder(path, LIMIT)
    most = 0
    for i in range(40):
        with suppress(OSError):  # no room while others are writing
            write(folder, f"{letter}{i % 5}.packed", 10 + 7 * (i % 6))
        most = max(most, sum(entry.nbytes for entry in folder.entries() if entry.is_complete))
    worst.put(most)


def test_processes_keep_the_limit_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    worst: multiprocessing.Queue = context.Queue()
    writers = [context.Process(target=_write_many, args=(tmp_path, c, worst)) for c in "xyz"]
    for writer in writers:
        writer.start()
    most = [worst.get(timeout=60) for _ in writers]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    entries = PackedFolder(tmp_path, LIMIT).entries()
    assert all(entry.is_complete for entry in entries)
    assert 0 < sum(entry.nbytes for entry in entries) <= LIMIT
    assert max(most) <= 2 * LIMIT  # a listing is not taken at one moment
