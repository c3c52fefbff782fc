"""A PyTorch file read without torch: torch's own tensors, and files that would run code or lie about their size."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forerun.core.errors import LoadError
from forerun.weights.torch_file import read_torch_file, tensor_names


def test_tensors_are_those_that_torch_saved(tmp_path: Path) -> None:
    source = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 7
    saved = OrderedDict(
        half=source.half(),
        brain=source.bfloat16(),
        double=source.double(),
        turned=source.T,
        part=source[1:3, 2:],
        ids=torch.tensor([3, 1, 2]),
        mask=torch.tensor([True, False]),
        scalar=torch.tensor(2.5),
        none=torch.zeros(0, 3),
        learned=torch.nn.Parameter(source),
    )
    torch.save(saved, tmp_path / "file.bin")
    read = read_torch_file(tmp_path / "file.bin")
    assert list(read) == list(saved)
    assert tensor_names(tmp_path / "file.bin") == saved.keys()
    for name, tensor in saved.items():
        wanted = tensor.detach()
        wanted = (wanted.float() if wanted.is_floating_point() else wanted).numpy()
        assert read[name].dtype == wanted.dtype
        assert np.array_equal(read[name], wanted), name


def test_a_file_of_a_trainer_may_wrap_the_tensors(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "file.bin")
    assert read_torch_file(tmp_path / "file.bin")["a"].tolist() == [1, 1]


def test_names_are_read_without_the_numbers(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "file.bin")
    with zipfile.ZipFile(tmp_path / "file.bin") as whole:
        kept = {name: whole.read(name) for name in whole.namelist() if "/data/" not in name}
    with zipfile.ZipFile(tmp_path / "file.bin", "w") as described:
        for name, data in kept.items():
            described.writestr(name, data)
    assert tensor_names(tmp_path / "file.bin") == {"a"}
    with pytest.raises(LoadError, match="cannot be read"):
        read_torch_file(tmp_path / "file.bin")


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_nothing_that_a_file_says_is_run(tmp_path: Path) -> None:
    torch.save({"a": Harmful(tmp_path / "mark")}, tmp_path / "file.bin")
    for reads in (read_torch_file, tensor_names):
        with pytest.raises(LoadError, match=r"it calls posix\.system"):
            reads(tmp_path / "file.bin")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((9,), (1,), 0), ((2,), (1,), 7), ((2,), (-1,), 4)]
)
def test_a_tensor_beyond_its_storage_is_refused(
    tmp_path: Path, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    class Storage:
        pass

    class Lying:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            rebuild = torch._utils._rebuild_tensor_v2
            return rebuild, (Storage(), offset, size, stride, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            kind = torch.FloatStorage
            return ("storage", kind, "0", "cpu", 8) if isinstance(obj, Storage) else None

    with zipfile.ZipFile(tmp_path / "file.bin", "w") as archive:
        with archive.open("x/data.pkl", "w") as described:
            Pickler(described, protocol=2).dump({"a": Lying()})
        archive.writestr("x/data/0", bytes(32))
    with pytest.raises(LoadError, match="a tensor reaches beyond its storage"):
        read_torch_file(tmp_path / "file.bin")


def test_what_is_no_such_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    torch.save(torch.ones(2), path)
    with pytest.raises(LoadError, match="holds more than tensors"):
        read_torch_file(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LoadError, match=r"cannot be read: .*; take a copy with model\.safetensors"):
        read_torch_file(path)
