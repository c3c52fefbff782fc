"""Folders of networks that draft: config.json and model.safetensors, ours and those of other engines.

The `target` of our config.json is the model that the network was trained for: for another one it is refused.
A matrix may be stored as int8 codes (N, K) with `<name>.scales` (N, K / 32) fp16, a quarter of fp32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError, short_repr
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.hugging_face import HubName
from forerun.hub.names import resolve
from forerun.model.arch.base.settings import LARGEST, number_in
from forerun.system import files
from forerun.system.opened import read_json
from forerun.weights.codes import FORMATS
from forerun.weights.safetensors_file import read_tensors
from forerun.weights.stored import StoredTensor
from forerun.weights.torch_file import read_torch_file

UNTRAINED = "untrained"
"""The name of a network of random weights: for checks, and to measure what a draft costs."""
UNTRAINED_TOKENS = 4096
"""Of its head, at most."""
CONFIG, TENSORS = "config.json", "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
SCALES = ".scales"
_INTEGERS = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}
DRAFT_IDS = "draft_ids"
"""The tokens of a head that does not know all."""
GROUP = 32
_MOST = 1 << 16
_LARGEST = {
    **LARGEST,
    "target_hidden_size": LARGEST["hidden_size"],
    "mask_token_id": LARGEST["vocab_size"],
    "sliding_window": (1 << 31) - 1,
}
"""Upper bounds of whole numbers by name; of all others it is `_MOST`. What is computed of them stays small."""

Array = NDArray[Any]
"""Of floats, or of integers that are token ids."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder holds: `config` as read, tensors by name, codes already times their scales."""

    path: Path
    config: Mapping[str, object]
    tensors: Mapping[str, Array]

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Read a whole number of the configuration, by the first name that is there. Raises LoadError."""
        value = next((self.config[n] for n in names if self.config.get(n) is not None), default)
        most = _LARGEST.get(names[0], _MOST)
        if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(most)):
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise LoadError(
                f"{self.path / CONFIG}: '{names[0]}' must be a whole number from {least} to {most}, got "
                f"{short_repr(value)}"
            )
        return value

    def real(self, name: str, default: float) -> float:
        """Read a number from 1e-12 to 1e6 of the configuration. Raises LoadError."""
        try:
            return number_in(name, self.config.get(name, default), 1e-12, 1e6)
        except LoadError as error:
            raise LoadError(f"{self.path / CONFIG}: {error}") from None

    def flag(self, name: str) -> bool:
        """Read a switch of the configuration, off if it is not there. Raises LoadError."""
        value = self.config.get(name, False)
        if not isinstance(value, bool):
            raise LoadError(f"{self.path / CONFIG}: '{name}' must be true or false, got {value!r}")
        return value

    def need(self, names: Mapping[str, tuple[int, ...]]) -> None:
        """Raise LoadError, naming it, for a tensor that is missing or has another shape (-1: any size)."""
        for name, shape in names.items():
            tensor = self.tensors.get(name)
            if tensor is None:
                raise LoadError(f"{self.path}: tensor '{name}' is missing")
            sizes = [*tensor.shape]
            if len(sizes) != len(shape) or any(b not in (a, -1) for a, b in zip(sizes, shape)):
                wanted = ", ".join("any" if size < 0 else str(size) for size in shape)
                raise LoadError(f"{self.path}: tensor '{name}' is {sizes}, expected [{wanted}]")
            if is_float(tensor) and not bool(np.isfinite(tensor).all()):
                raise LoadError(f"{self.path}: tensor '{name}' holds values that are not finite")

    def network(
        self,
        names: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]],
        is_ignored: Callable[[str], bool] = lambda name: False,
    ) -> dict[str, Floats]:
        """Return a network's tensors in fp32, by the names of `shapes`; `names` are those of the files by these.

        Raises LoadError for one that is missing or misshapen, and for one that is not of the network.
        """
        self.need({names.get(name, name): shape for name, shape in shapes.items()})
        for name in sorted(names.keys() - shapes.keys()):
            if not is_ignored(name):
                raise LoadError(f"{self.path}: tensor '{names[name]}' is none of such a network")
        return {n: self.tensors[names[n]].astype(np.float32, copy=False) for n in shapes}

    def check_target(self, compared: Iterable[tuple[int, int, str]]) -> None:
        """Raise LoadError for the first size that is another model's: (the network's, the target's, of what)."""
        for trained, own, what in compared:
            if trained != own:
                raise LoadError(
                    f"{self.path} was trained for another model: it reads {what} {trained}, this model has {own}"
                )


def at(model: str) -> Path:
    """Return where a network lies: a path, or a name of the Hugging Face Hub, fetched if it is not here yet.

    Raises LoadError.
    """
    path = expanded(model)
    return path if path.exists() or HubName.parse(model) is None else resolve(model)


def read(path: Path, target: Target) -> Folder:
    """Read a folder that fits a target. Raises LoadError that says what is wrong, and where."""
    return replace(read_config(path, target), tensors=_with_scales(path, _tensors(path)))


def read_config(path: Path, target: Target) -> Folder:
    """Read a folder that fits a target, without its tensors, whose kinds are compared. Raises LoadError."""
    config = config_of(path)
    _check_target(path, config.get("target"), target)
    for file in _tensor_files(path):
        _mapped(file)
    return Folder(path, config, {})


def write(path: Path, config: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
    """Write a folder, made if it is not there; the configuration last, so that a folder that has one is complete.

    Raises OSError.
    """
    files.make_folder(path)
    stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    files.replace(path / TENSORS, safetensors.numpy.save(stored, {"format": "pt"}))
    files.replace(path / CONFIG, json.dumps(config, indent=2).encode() + b"\n")


def is_float(array: Array) -> bool:
    """Tell whether an array holds floating-point numbers."""
    return np.issubdtype(array.dtype, np.floating)


def describe_target(target: Target, name: str) -> dict[str, object]:
    """Make the `target` of a configuration, which `read` compares."""
    shape = target.model.config
    return {
        "name": name,
        "hidden_size": shape.hidden_size,
        "num_layers": shape.num_layers,
        "vocab_size": shape.vocab_size,
        "tokenizer": None if target.vocabulary is None else fingerprint(target.vocabulary),
    }


def untrained_tokens(vocab_size: int) -> Ids | None:
    """List the tokens of an untrained network's head (V',); None for all."""
    return None if vocab_size <= UNTRAINED_TOKENS else np.arange(UNTRAINED_TOKENS)


def untrained_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Draw random matrices that keep the size of what they read, norms of ones and biases of zeros."""
    source = np.random.default_rng(0)
    tensors = dict[str, Array]()
    for name, shape in shapes.items():
        if len(shape) > 1:
            tensors[name] = source.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        else:
            tensors[name] = np.full(shape, not name.endswith("bias"), np.float32)
    return tensors


def token_ids(folder: Folder, name: str, vocab_size: int, ids: Array | None = None) -> Ids:
    """Read ascending ids of tokens (V',), or check those `ids` that were made of a tensor. Raises LoadError."""
    ids = folder.tensors[name] if ids is None else ids
    is_right = ids.ndim == 1 and len(ids) > 0 and not is_float(ids)
    if not is_right or ids[0] < 0 or ids[-1] >= vocab_size or bool((np.diff(ids) <= 0).any()):
        raise LoadError(
            f"{folder.path}: tensor '{name}' must be ascending token ids below {vocab_size}"
        )
    return ids.astype(np.int64)


def temperatures(folder: Folder) -> tuple[float, ...]:
    """Read `temperature`, by depth. Raises LoadError."""
    values = folder.config.get("temperature", 1.0)
    values = values if isinstance(values, list) else [values]
    if not values or not all(isinstance(v, int | float) and 0 < v < 1000 for v in values):
        raise LoadError(f"{folder.path}: 'temperature' must be numbers above 0, got {values!r}")
    return tuple(map(float, values))


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


def config_of(path: Path) -> dict[str, object]:
    """Read the configuration. Raises LoadError."""
    if not (path / CONFIG).is_file():
        raise LoadError(f"{path} has no {CONFIG}: give a folder that forerun train drafter wrote")
    return read_json(path / CONFIG)


def _check_target(path: Path, trained: object, target: Target) -> None:
    """Raise LoadError for another target than the network was trained for."""
    if trained is None:
        return
    if not isinstance(trained, dict):
        raise LoadError(f"{path / CONFIG}: 'target' must be an object, got {trained!r}")
    here = describe_target(target, "")
    for key in ("tokenizer", "hidden_size", "num_layers", "vocab_size"):
        stored, own = trained.get(key), here[key]
        if stored is not None and own is not None and stored != own:
            raise LoadError(
                f"{path} was trained for {trained.get('name', 'another model')}, whose {key.replace('_', ' ')} is "
                f"{stored}; this model's is {own}: train one with forerun train drafter"
            )


def _tensor_files(path: Path) -> list[Path]:
    """Return the safetensors files of a folder; none if it has a file of torch instead. Raises LoadError."""
    index = path / f"{TENSORS}.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise LoadError(f"{index} has no weight_map")
        return [path / name for name in sorted(set(weight_map.values()))]
    if not (path / TENSORS).is_file() and (path / TORCH_FILE).is_file():
        return []
    return [path / TENSORS]


def _tensors(path: Path) -> dict[str, Array]:
    tensors = dict[str, Array]()
    for file in _tensor_files(path):
        tensors |= read_arrays(file)
    return tensors or read_torch_file(path / TORCH_FILE)


def _mapped(path: Path) -> dict[str, StoredTensor]:
    """Map the tensors of a safetensors file. Raises LoadError for a kind that no network is stored as."""
    tensors = read_tensors(path)
    for name, stored in tensors.items():
        if (kind := stored.format.name) not in _INTEGERS and kind not in FORMATS:
            raise LoadError(f"{path}: tensor '{name}' is {kind}, which no network is stored as")
    return tensors


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the tensors of a safetensors file, floats as fp32. Raises LoadError."""
    return {name: as_array(stored) for name, stored in _mapped(path).items()}


def as_array(stored: StoredTensor) -> Array:
    """Read a tensor, floats as fp32."""
    if (kind := stored.format.name) in _INTEGERS:
        return stored.data.reshape(-1).view(_INTEGERS[kind]).reshape(stored.shape)
    return stored.dequantize()


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Map the tensors of a folder's safetensors files. Raises LoadError."""
    return {name: tensor for file in _tensor_files(path) for name, tensor in _mapped(file).items()}


def _with_scales(path: Path, stored: Mapping[str, Array]) -> dict[str, Array]:
    """Multiply codes by their scales, fp32. Raises LoadError for scales that do not fit."""
    tensors = dict[str, Array]()
    for name, tensor in stored.items():
        scales = stored.get(name + SCALES)
        if scales is not None:
            if tensor.ndim != 2 or [*scales.shape] != [len(tensor), tensor.shape[1] // GROUP]:
                raise LoadError(f"{path}: tensor '{name}{SCALES}' does not fit '{name}'")
            groups = tensor.astype(np.float32).reshape(len(tensor), -1, GROUP)
            tensor = (groups * scales[..., None]).reshape(tensor.shape)
        if not name.endswith(SCALES):
            tensors[name] = tensor
    return tensors
