"""GGUF files in parts: they are read as one, and parts that do not belong together are refused in a line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from forerun.core.errors import LoadError
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.files import matrix, write_gguf

TENSORS = {f"blk.{i}.w": matrix(4, 32, seed=i) for i in range(6)}


def split(path: Path, tensors: dict[str, np.ndarray] = TENSORS, each: int = 2) -> list[Path]:
    """The parts, `each` tensors in each, as the reference's own writer splits a file."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=each)
    writer.add_block_count(2)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-*.gguf"))


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_all(tmp_path: Path, given: int) -> None:
    parts = split(tmp_path / "m.gguf")
    assert [part.name for part in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    checkpoint = open_checkpoint(parts[given])
    assert checkpoint.path == parts[0]
    assert checkpoint.architecture == "llama"
    assert checkpoint.config["llama.block_count"] == 2
    assert checkpoint.names() == TENSORS.keys()
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).dequantize(), values)


def test_a_whole_file_may_be_called_like_the_only_part(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-00001-of-00001.gguf", TENSORS)
    assert open_checkpoint(path).names() == TENSORS.keys()


def lose(parts: list[Path]) -> None:
    parts[1].unlink()


def rename(parts: list[Path]) -> None:
    parts[2].replace(parts[0].with_name("x.gguf"))
    parts[1].replace(parts[2])
    parts[0].with_name("x.gguf").replace(parts[1])


def take_from_another(parts: list[Path]) -> None:
    more = TENSORS | {"v": matrix(4, 32)}
    others = split(parts[0].parent / "other.gguf", more, each=3)
    others[2].replace(parts[2])


def take_a_whole_file(parts: list[Path]) -> None:
    write_gguf(parts[2], {"v": matrix(4, 32)})


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose, r"1 of 3 parts are missing, the first of them m-00002-of-00003.gguf: all parts"),
        (
            rename,
            r"m-00002-of-00003.gguf says that it is part 3 of 3, but by its name it is part 2",
        ),
        (take_from_another, r"m-00003-of-00003.gguf is a part of another model: it counts 7 tens"),
        (take_a_whole_file, r"m-00003-of-00003.gguf says that it is part 1 of 1, but"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, harm: Callable[[list[Path]], None], message: str
) -> None:
    parts = split(tmp_path / "m.gguf")
    harm(parts)
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(parts[0])
    assert "\n" not in str(caught.value)


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    part = split(tmp_path / "m.gguf")[1].rename(tmp_path / "mine.gguf")
    with pytest.raises(LoadError, match=r"part 2 of 3, but by its name it is part 1 of 1: give it"):
        open_checkpoint(part)


def test_a_tensor_of_two_parts_is_refused(tmp_path: Path) -> None:
    parts = split(tmp_path / "m.gguf")
    names = list(TENSORS)
    shifted = dict(zip(names[2:] + names[:2], TENSORS.values(), strict=True))
    split(tmp_path / "twin.gguf", shifted)[0].replace(parts[2])
    renumber(parts[2])
    with pytest.raises(LoadError, match=r"two tensors are called 'blk.2.w'"):
        open_checkpoint(parts[0])


def renumber(path: Path) -> None:
    """Make a first part say that it is the third."""
    data = path.read_bytes()
    at = data.index(b"split.no") + len(b"split.no") + 4
    path.write_bytes(data[:at] + b"\x02" + data[at + 1 :])


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_change_in_any_part_is_noticed(tmp_path: Path, changed: int) -> None:
    parts = split(tmp_path / "m.gguf")
    before = open_checkpoint(parts[0]).files
    assert open_checkpoint(parts[0]).files == before
    os.utime(parts[changed], ns=(1, 1))
    assert open_checkpoint(parts[0]).files != before
