"""Hugging Face folders: config.json, memory-mapped safetensors files, the tokenizer's files."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Set
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import safetensors

from forerun.core.errors import LoadError, short_repr
from forerun.core.opened import OpenedFile, open_noted
from forerun.core.params import SamplingParams
from forerun.text import generation
from forerun.text.hf_tokenizer import read_json, tokenizer_from_folder
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.codes import FORMATS, WeightFormat
from forerun.weights.hf_quantized import join, quantization_config
from forerun.weights.multimodal import language_model_of, with_prefix
from forerun.weights.stored import StoredTensor

_FORMATS: Mapping[str, WeightFormat] = {
    name: FORMATS[name.lower()] for name in ("F32", "F16", "BF16")
}


class HfCheckpoint(Checkpoint):
    """An open folder. Raises LoadError naming the file in question if it cannot be read."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            ggufs = sorted(file.name for file in path.glob("*.gguf"))
            hint = (
                f"did you mean {path / ggufs[0]}?" if ggufs else "give a GGUF file or such a folder"
            )
            raise LoadError(
                f"{path} has no config.json: it is no Hugging Face model folder; {hint}"
            )
        self.path = path
        self.files: list[OpenedFile] = []
        self.config: Mapping[str, object] = read_json(path / "config.json", self.files)
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            architectures = [self.config.get("model_type")]  # by which transformers loads it
        if not isinstance(architectures[0], str):
            raise LoadError(f"{path / 'config.json'} names no architectures and no model_type")
        self.architecture = architectures[0]
        self._tensors: dict[str, StoredTensor] = {}
        for file, names in _weight_files(path, self.files).items():
            self._tensors |= read_tensors(file, names, self.files)
        quantization = quantization_config(
            self.config,
            awq=read_json(path / "quant_config.json", self.files),
            gptq=read_json(path / "quantize_config.json", self.files),
            modelopt=read_json(path / "hf_quant_config.json", self.files),
        )
        if quantization is not None:
            self._tensors = join(path, quantization, self._tensors)
        self.config, self._tensors = language_model_of(
            self.architecture, self.config, self._tensors
        )
        self._tensors = with_prefix(self._tensors)

    def tensor(self, name: str) -> StoredTensor:
        """Return one tensor as stored. Raises LoadError with the closest names, or naming its type."""
        tensor = super().tensor(name)
        if tensor.format.name not in FORMATS:
            raise LoadError(
                f"{self.path}: tensor '{name}' is stored as {tensor.format.name}, "
                f"which is not supported (allowed: {', '.join(_FORMATS)})"
            )
        return tensor

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer in the folder of the weights. Raises LoadError."""
        tokenizer, num_rows = tokenizer_from_folder(self.path), self.config.get("vocab_size")
        return self._checked(tokenizer, "the embedding ('vocab_size' of config.json)", num_rows)

    def default_params(self) -> SamplingParams:
        """Read the sampling settings of generation_config.json. Raises LoadError."""
        path = self.path / "generation_config.json"
        return generation.from_hf(read_json(path), str(path))


def _weight_files(folder: Path, opened: list[OpenedFile]) -> dict[Path, set[str]]:
    """Return the safetensors files: the single one, else those of the index with the tensors it says they have."""
    single = folder / "model.safetensors"
    if single.is_file():  # whatever an index says that was left behind
        return {single: set()}
    index = folder / "model.safetensors.index.json"
    listed = read_json(index, opened)
    if opened[-1].state:
        weight_map = listed.get("weight_map")
        if not isinstance(weight_map, dict):
            raise LoadError(f"{index} has no weight_map")
        files: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            if _leads_out(file):
                raise LoadError(
                    f"{index} names {short_repr(file)} for tensor '{name}': a file in the model's folder is needed"
                )
            files.setdefault(folder / file, set()).add(name)
        return files
    if any(folder.glob("pytorch_model*.bin")):
        raise LoadError(
            f"{folder} holds pytorch_model.bin, which can run code when it is read: convert it to "
            "safetensors with transformers' AutoModelForCausalLM.from_pretrained(...)"
            ".save_pretrained(...)"
        )
    raise LoadError(f"{folder} has no model.safetensors and no model.safetensors.index.json")


def _leads_out(file: object) -> bool:
    """Tell whether a name is none, or leads out of its folder on any system; links in the folder lead anywhere."""
    if not isinstance(file, str) or not file or "\0" in file:
        return True
    return any(
        path.anchor != "" or ".." in path.parts
        for path in (PurePosixPath(file), PureWindowsPath(file))
    )


def read_tensors(
    path: Path, names: Set[str] = frozenset(), opened: list[OpenedFile] | None = None
) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name, mapped here and not by the library, which keeps its pages.

    `names` are those that an index says it has; the file is added to those that were `opened`. Raises LoadError.
    """
    try:
        with safetensors.safe_open(path, framework="np"):  # checks the header
            pass
        with open_noted(path, [] if opened is None else opened) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, safetensors.SafetensorError) as error:
        lost = f" (the index says it has '{min(names)}' and {len(names) - 1} more)" if names else ""
        raise LoadError(f"{path} cannot be read: {error}{lost}") from error
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    header.pop("__metadata__", None)
    data = np.frombuffer(mapped, np.uint8)[start:]
    tensors = {}
    for name, entry in header.items():
        format = _FORMATS.get(entry["dtype"]) or WeightFormat(entry["dtype"], bits=0)
        shape = tuple(entry["shape"])
        num_rows = max(shape[0], 1) if len(shape) > 1 else 1
        rows = data[slice(*entry["data_offsets"])].reshape(num_rows, -1)
        tensors[name] = StoredTensor(name, shape, format, rows)
    return tensors
