"""Hugging Face folders: config.json, memory-mapped safetensors files, the tokenizer's files."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.formats.hf_tokenizer import read_json, tokenizer_from_folder
from forerun.formats.tokenizer import Tokenizer
from forerun.formats.weights import FORMATS, FloatTensor, StoredTensor, WeightFormat, no_tensor

_FORMATS: Mapping[str, WeightFormat] = {
    name: FORMATS[name.lower()] for name in ("F32", "F16", "BF16")
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of a safetensors file: its type in that format's words, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class HfCheckpoint:
    """An open folder. Raises LoadError naming the file in question if it cannot be read."""

    kind: Literal["gguf", "hf"] = "hf"

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise LoadError(f"{path} has no config.json: it is no Hugging Face model folder")
        self.path = path
        self.config: Mapping[str, object] = read_json(path / "config.json")
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            raise LoadError(f"{path / 'config.json'} names no architectures")
        self.architecture = str(architectures[0])
        self._entries: dict[str, _Entry] = {}
        for file in _weight_files(path):
            self._entries |= _entries(file)

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._entries)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor as stored. Raises LoadError with the closest names, or naming its type."""
        if name not in self._entries:
            raise no_tensor(self.path, name, self._entries)
        entry = self._entries[name]
        if entry.dtype not in _FORMATS:
            raise LoadError(
                f"{self.path}: tensor '{name}' is stored as {entry.dtype}, which is not supported "
                f"(allowed: {', '.join(_FORMATS)})"
            )
        num_rows = entry.shape[0] if len(entry.shape) > 1 else 1
        data = entry.data.reshape(num_rows, -1)
        return FloatTensor(name, entry.shape, _FORMATS[entry.dtype], data)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the weights. Raises LoadError."""
        return tokenizer_from_folder(self.path)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files: those of the index, or the single one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise LoadError(f"{index} has no weight_map")
        return [folder / name for name in sorted(set(weight_map.values()))]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if any(folder.glob("pytorch_model*.bin")):
        raise LoadError(
            f"{folder} holds pytorch_model.bin, which can run code when it is read: convert it to "
            "safetensors with transformers' AutoModelForCausalLM.from_pretrained(...)"
            ".save_pretrained(...)"
        )
    raise LoadError(f"{folder} has no model.safetensors and no model.safetensors.index.json")


def _entries(path: Path) -> dict[str, _Entry]:
    """The tensors of a safetensors file by name, mapped here and not by the library, which keeps its pages."""
    try:
        with safetensors.safe_open(path, framework="np"):  # checks the header
            pass
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, safetensors.SafetensorError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    data = np.frombuffer(mapped, np.uint8)[start:]
    return {
        name: _Entry(entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }
