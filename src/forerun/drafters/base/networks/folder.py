"""Files of networks that draft: config.json and model.safetensors, ours and those of other engines, and GGUF files.

The `target` of our config.json is the model that the network was trained for: for another one it is refused.
A matrix may be stored as int8 codes (N, K) with `<name>.scales` (N, K / 32) fp16, a quarter of fp32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from forerun.core.errors import LoadError, short_repr
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.hugging_face import HubName
from forerun.hub.names import resolve
from forerun.system import files
from forerun.system.opened import read_json
from forerun.weights.base import Checkpoint
from forerun.weights.codes import FORMATS, Codes, WeightFormat
from forerun.weights.gguf import GgufCheckpoint
from forerun.weights.hf import HfCheckpoint, folder_tensors
from forerun.weights.stored import StoredTensor, stored_floats
from forerun.weights.torch_file import read_torch_file

CONFIG, TENSORS = "config.json", "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
SCALES = ".scales"
DRAFT_IDS = "draft_ids"
"""The tokens of a head that does not know all."""
GROUP = 32
_DIGITS = 9
"""Of a number that a configuration has as a text, at most."""
_INTEGERS = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}

Array = NDArray[Any]
"""Of floats, or of integers that are token ids."""


class NetworkFolder(HfCheckpoint):
    """A folder of a network, whose tensors are mapped when they are asked for. Raises LoadError."""

    def __init__(self, path: Path) -> None:
        if not (path / CONFIG).is_file():
            raise LoadError(
                f"{path} has no {CONFIG}: give a folder that forerun train drafter wrote"
            )
        self.path, self.files = path, []
        config: dict[str, object] = read_json(path / CONFIG, self.files)
        named = config.get("architectures")
        first = named[0] if isinstance(named, list) and named else config.get("model_type")
        self.architecture = first if isinstance(first, str) else short_repr(first)
        self.config = {key: _number(value) for key, value in config.items()}

    @cached_property
    def _tensors(self) -> Mapping[str, StoredTensor]:  # type: ignore[override]
        has_others = any(self.path.glob("*.safetensors*"))
        if not has_others and (self.path / TORCH_FILE).is_file():
            found = read_torch_file(self.path / TORCH_FILE)
            return {name: _stored(name, values) for name, values in found.items()}
        tensors = folder_tensors(self.path, self.files)
        for name, stored in tensors.items():
            if (kind := stored.format.name) not in _INTEGERS and kind not in FORMATS:
                raise LoadError(f"tensor '{name}' is {kind}, which no network is stored as")
        return _with_scales(tensors)


def open_network(model: str) -> Checkpoint:
    """Open a network: a GGUF file, a folder, or a name of the Hugging Face Hub, fetched if it is not here yet.

    Raises LoadError.
    """
    path = expanded(model)
    if path.suffix == ".gguf":
        return GgufCheckpoint(path)
    return NetworkFolder(path if path.exists() or HubName.parse(model) is None else resolve(model))


def integers(file: Checkpoint, name: str) -> Array:
    """Read a tensor of whole numbers, which no format of weights is. Raises LoadError."""
    stored = file.raw(name)
    kind = stored.format.name.upper()
    if kind not in _INTEGERS:
        raise LoadError(f"tensor '{name}' is {stored.format.name}, but must be whole numbers")
    data = np.ascontiguousarray(stored.data).reshape(-1)
    return data.view(_INTEGERS[kind]).reshape(stored.shape)


def write(path: Path, config: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
    """Write a folder, made if it is not there; the configuration last, so that a folder that has one is complete.

    Raises OSError.
    """
    stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    files.replace(path / TENSORS, safetensors.numpy.save(stored, {"format": "pt"}))
    files.replace(path / CONFIG, json.dumps(config, indent=2).encode() + b"\n")


def is_float(array: Array) -> bool:
    """Tell whether an array holds floating-point numbers."""
    return np.issubdtype(array.dtype, np.floating)


def rounded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Round matrices to int8 codes in groups of 32 with fp16 scales, as `bits=8` runs them; the rest in fp16."""
    stored = dict[str, Array]()
    for name, tensor in tensors.items():
        if not is_float(tensor):
            stored[name] = tensor
        elif tensor.ndim != 2 or tensor.shape[1] % GROUP:
            stored[name] = tensor.astype(np.float16)
        else:
            groups = tensor.astype(np.float32).reshape(len(tensor), -1, GROUP)
            scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
            wide = scales.astype(np.float32)
            inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
            codes = np.clip(np.round(groups * inverse[..., None]), -127, 127)
            stored[name] = codes.astype(np.int8).reshape(tensor.shape)
            stored[name + SCALES] = scales
    return stored


def describe_target(target: Target, name: str) -> dict[str, object]:
    """Make the `target` of a configuration, which `check_target` compares."""
    shape = target.model.config
    return {
        "name": name,
        "hidden_size": shape.hidden_size,
        "num_layers": shape.num_layers,
        "vocab_size": shape.vocab_size,
        "tokenizer": None if target.vocabulary is None else fingerprint(target.vocabulary),
    }


def check_target(file: Checkpoint, target: Target) -> None:
    """Raise LoadError for another target than the network says it was trained for."""
    trained = file.config.get("target")
    if trained is None:
        return
    if not isinstance(trained, dict):
        raise LoadError(f"'target' must be an object, got {short_repr(trained)}")
    here = describe_target(target, "")
    for key in ("tokenizer", "hidden_size", "num_layers", "vocab_size"):
        stored, own = trained.get(key), here[key]
        if stored is not None and own is not None and stored != own:
            raise LoadError(
                f"it was trained for {trained.get('name', 'another model')}, whose {key.replace('_', ' ')} is "
                f"{stored}; this model's is {own}: train one with forerun train drafter"
            )


def _number(value: object) -> object:
    """Return a value, a number where it is one as a text: Snowflake's configurations have some."""
    is_text = isinstance(value, str) and len(value) <= _DIGITS and value.isdecimal()
    return int(value) if is_text else value  # type: ignore[call-overload]


def _stored(name: str, values: Array) -> StoredTensor:
    """Return an array as a tensor of a file."""
    if is_float(values):
        return stored_floats(name, values)
    kinds = {np.dtype(dtype): kind for kind, dtype in _INTEGERS.items()}
    kind = kinds.get(values.dtype, values.dtype.name)
    data = np.ascontiguousarray(values).reshape(1, -1).view(np.uint8)
    return StoredTensor(name, values.shape, WeightFormat(kind, bits=0), data)


def _with_scales(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Join codes with their scales to matrices. Raises LoadError for scales that do not fit."""
    joined = {name: each for name, each in tensors.items() if not name.endswith(SCALES)}
    for name in tensors.keys() - joined.keys():
        base = name.removesuffix(SCALES)
        codes, scales = joined.get(base), tensors[name]
        if codes is None or len(codes.shape) != 2 or codes.format.name != "I8":
            raise LoadError(f"tensor '{name}' has no codes '{base}'")
        if scales.shape != (codes.shape[0], codes.shape[1] // GROUP) or codes.shape[1] % GROUP:
            raise LoadError(f"tensor '{name}' does not fit '{base}'")
        joined[base] = _scaled(codes, scales)
    return joined


def _scaled(codes: StoredTensor, scales: StoredTensor) -> StoredTensor:
    def read() -> Codes:
        return Codes(codes.data.view(np.int8), scales.dequantize())

    return StoredTensor(codes.name, codes.shape, FORMATS["q8_0"], codes.data, read)
