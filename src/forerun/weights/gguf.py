"""GGUF files (llama.cpp's format): metadata, tokenizer and weights in one file or several, memory-mapped.

Parsing the header is `gguf_header.py`, the tokenizer `gguf_tokenizer.py`; here they become a
Checkpoint.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.system.opened import OpenedFile, open_noted
from forerun.text import generation
from forerun.text.gguf_tokenizer import tokenizer_from_gguf
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.codes import FORMATS, WeightFormat
from forerun.weights.gguf_blocks import nvfp4
from forerun.weights.gguf_header import (
    DEFAULT_ALIGNMENT,
    TENSOR_TYPES,
    Header,
    TensorInfo,
    read_header,
)
from forerun.weights.gguf_parts import check_parts, check_present, part_paths
from forerun.weights.gguf_roles import no_model
from forerun.weights.stored import StoredTensor

IDS = WeightFormat("i64", 64, block_nbytes=8)
"""Token ids of a drafter's head; no weights."""


class GgufCheckpoint(Checkpoint):
    """An open GGUF file, or all parts of a split one if `path` is any of them; `path` is the first then.

    `metadata` is all of it. Raises LoadError naming the file if it cannot be read.
    """

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        paths = part_paths(path)
        self.path = paths[0]
        try:
            if len(paths) > 1:
                check_present(paths)
            parts = [_open(part) for part in paths]
            check_parts(paths, [header for header, *_ in parts])
            self.metadata = parts[0][0].metadata
            self.files = [opened for *_, opened in parts]
            self._tensors: dict[str, StoredTensor] = {}
            for header, data, _ in parts:
                _add_tensors(self._tensors, header, data)
            _scale_nvfp4(self._tensors)
        except LoadError as error:
            raise LoadError(f"{path}: {error}") from error
        if what := no_model(self.metadata):
            raise LoadError(f"{path} is {what}, no model: give the model's own file")
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise LoadError(f"{path}: the metadata has no general.architecture")
        self.architecture = architecture
        self.config: Mapping[str, object] = {
            key: value
            for key, value in self.metadata.items()
            if not (key.startswith("tokenizer.") and isinstance(value, list))
        }

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the metadata. Raises LoadError."""
        try:
            tokenizer = tokenizer_from_gguf(self.metadata)
        except LoadError as error:
            raise LoadError(f"{self.path}: {error}") from error
        embedding = self._tensors.get("token_embd.weight")
        num_rows = None if embedding is None else embedding.shape[0]
        return self._checked(tokenizer, "'token_embd.weight'", num_rows)

    def default_params(self) -> SamplingParams:
        """Read the sampling settings of `general.sampling.*`. Raises LoadError."""
        return generation.from_gguf(self.metadata, str(self.path))


def _open(path: Path) -> tuple[Header, NDArray[np.uint8], OpenedFile]:
    """Return the header and the bytes of the whole file, read from disk as they are used."""
    opened: list[OpenedFile] = []
    try:
        with open_noted(path, opened) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = "the file is empty" if isinstance(error, ValueError) else error.strerror
        raise LoadError(f"{reason}") from error
    return read_header(mapped), np.frombuffer(mapped, np.uint8), opened[0]


def _add_tensors(tensors: dict[str, StoredTensor], header: Header, data: NDArray[np.uint8]) -> None:
    alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise LoadError(f"the file is corrupt: general.alignment is {alignment!r}")
    _check_types(header)
    start = stop = -(-header.stop // alignment) * alignment
    for info in header.tensors:
        if info.name in tensors:
            raise LoadError(f"the file is corrupt: two tensors are called '{info.name}'")
        # Tensors lie in the order of the header, each at the next multiple of the alignment.
        if start + info.offset != stop:
            raise LoadError(
                f"the file is corrupt: tensor '{info.name}' has offset {info.offset}, "
                f"but the tensor before it ends at {stop - start}"
            )
        tensors[info.name] = tensor = _tensor(info, data, stop)
        stop += -(-tensor.nbytes // alignment) * alignment
    if stop + alignment <= len(data):
        raise LoadError(
            f"the file is corrupt: it has {len(data)} bytes, but its last tensor ends at {stop}"
        )


@cache
def _formats() -> Mapping[str, WeightFormat]:
    """Return the formats that files have, by name. Blocks of NVFP4: four e4m3 scales, then the nibbles of each."""
    known = {name.lower() for name in TENSOR_TYPES.values()} & FORMATS.keys()
    nvfp4 = replace(FORMATS["nvfp4"], block=64, block_nbytes=36)
    return {name: form for name, form in FORMATS.items() if name in known} | {"nvfp4": nvfp4}


def _scale_nvfp4(tensors: dict[str, StoredTensor]) -> None:
    """Give matrices in NVFP4 the factors beside them: `.scale`, one or one an expert; `.input_scale` is not used."""
    for name, stored in list(tensors.items()):
        if stored.format != _formats()["nvfp4"]:
            continue
        base = name.removesuffix(".weight")
        scale = tensors.pop(f"{base}.scale", None)
        tensors.pop(f"{base}.input_scale", None)
        factors = np.ones(1, np.float32) if scale is None else scale.dequantize().reshape(-1)
        if len(factors) not in (1, stored.shape[0]):
            raise LoadError(
                f"tensor '{base}.scale' has {len(factors)} numbers for '{name}' {stored.shape}"
            )
        tensors[name] = replace(
            stored, format=FORMATS["nvfp4"], read=partial(_nvfp4, stored, factors)
        )


def _nvfp4(stored: StoredTensor, factors: NDArray[np.float32]) -> NDArray[np.uint8]:
    num_rows = math.prod(stored.shape[:-1])
    blocks = stored.data.reshape(num_rows, -1, 36)
    of_rows = np.repeat(factors, num_rows // len(factors))
    scales = blocks[..., :4].reshape(num_rows, -1)
    return nvfp4(scales, blocks[..., 4:].reshape(num_rows, -1, 8), of_rows)


def _check_types(header: Header) -> None:
    """Raise LoadError naming the tensors that are stored in no format that can be read."""
    wrong = [info for info in header.tensors if _format(info) is None]
    if wrong:
        names = [f"'{info.name}'" for info in wrong[1:3]] + [f"{len(wrong) - 3} more"] * (
            len(wrong) > 3
        )
        others = f", nor is that of {' and '.join(names)}" if names else ""
        raise LoadError(
            f"tensor '{wrong[0].name}' is stored as {_type_name(wrong[0])}, which is not supported{others} "
            f"({', '.join(_formats()).upper()} are): take the model's file in one of these, "
            "such as Q4_K_M or IQ4_XS"
        )


def _type_name(info: TensorInfo) -> str:
    return TENSOR_TYPES.get(info.type_id, f"type {info.type_id}")


def _format(info: TensorInfo) -> WeightFormat | None:
    name = _type_name(info)
    return IDS if name == "I64" else _formats().get(name.lower())


def _tensor(info: TensorInfo, data: NDArray[np.uint8], first: int) -> StoredTensor:
    format = _format(info)
    assert format is not None, "checked before"
    if min(info.shape) < 1 or info.shape[-1] % format.block:
        raise LoadError(f"the file is corrupt: tensor '{info.name}' has shape {info.shape}")
    stop = first + math.prod(info.shape) // format.block * format.block_nbytes
    if stop > len(data):
        raise LoadError(
            f"the file is truncated: it has {len(data)} bytes, tensor '{info.name}' ends at {stop}"
        )
    num_rows = info.shape[0] if len(info.shape) > 1 else 1
    return StoredTensor(info.name, info.shape, format, data[first:stop].reshape(num_rows, -1))
