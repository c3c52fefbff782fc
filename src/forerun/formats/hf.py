"""Hugging Face folders: config.json, memory-mapped safetensors files, the tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import gguf
import safetensors
import torch

from forerun.core.errors import LoadError
from forerun.formats.checkpoint import StoredTensor, no_tensor
from forerun.formats.hf_tokenizer import read_json, tokenizer_from_folder
from forerun.formats.tokenizer import Tokenizer

_DTYPES: Mapping[str, gguf.GGMLQuantizationType] = {
    name: gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")
}


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
        self._files: dict[str, safetensors.safe_open] = {}
        for file in map(_open, _weight_files(path)):
            self._files |= dict.fromkeys(file.keys(), file)

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._files)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor as stored. Raises LoadError with the closest names, or naming its type."""
        if name not in self._files:
            raise no_tensor(self.path, name, self._files)
        entry = self._files[name].get_slice(name)
        dtype = entry.get_dtype()
        if dtype not in _DTYPES:
            raise LoadError(
                f"{self.path}: tensor '{name}' is stored as {dtype}, which is not supported "
                f"(allowed: {', '.join(_DTYPES)})"
            )
        shape = tuple(entry.get_shape())
        num_rows = shape[0] if len(shape) > 1 else 1
        data = self._files[name].get_tensor(name).reshape(num_rows, -1).view(torch.uint8)
        return StoredTensor(name, shape, _DTYPES[dtype], data.numpy())

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


def _open(path: Path) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
