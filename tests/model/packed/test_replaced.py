"""A model whose files were replaced is packed again, however they were."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

from forerun.core.errors import LoadError
from forerun.model.kernels import native
from forerun.weights.checkpoint import open_checkpoint
from tests.arrays import same_bits
from tests.model.packed.models import TOKENS, load, only_file, saved, serves
from tests.model.tiny import prefill

pytestmark = [
    pytest.mark.skipif(native.reason() is not None, reason="no native kernels"),
    pytest.mark.usefixtures("cache"),
]

INDEX = "model.safetensors.index.json"
READ = ["config.json", "model.safetensors", "quant_config.json", "quantize_config.json"]


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
