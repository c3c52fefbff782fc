"""Tensors of a PyTorch file (`pytorch_model.bin`), read without torch and without running what the file says.

Such a file is a zip: `data.pkl` describes the tensors, and each of their storages is another file of the zip. The
description is a pickle, which may call anything; here it may make dictionaries and tensors, and nothing else.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import LoadError
from forerun.system.opened import open_noted

Array = NDArray[Any]
_DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "u2",  # the upper half of fp32
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


def read_torch_file(path: Path) -> dict[str, Array]:
    """Return the tensors by name, floats as fp32. Raises LoadError, also for a file that would run code."""
    try:
        with open_noted(path, []) as file, zipfile.ZipFile(file) as archive:
            found = _Unpickler(archive).load()
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, TypeError,
            EOFError, AttributeError, IndexError) as error:  # fmt: skip
        raise LoadError(
            f"{path} cannot be read: {error}; take a copy with model.safetensors"
        ) from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(v, np.ndarray) for v in found.values()):
        raise LoadError(f"{path} holds more than tensors: take a copy with model.safetensors")
    return {str(name): tensor for name, tensor in found.items()}


class _Unpickler(pickle.Unpickler):
    """Reads the description, whose storages are the other files of the archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        names = archive.namelist()
        described = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
        if not described:
            raise pickle.UnpicklingError("it is not a file of torch.save since 1.6")
        self.archive, self.folder = archive, described[0].removesuffix("data.pkl")
        super().__init__(io.BytesIO(archive.read(described[0])))

    def find_class(self, module: str, name: str) -> Any:
        """Return what a tensor is made of. Raises UnpicklingError for anything else."""
        if module == "torch" and name in _DTYPES:
            return name
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it calls {module}.{name}")
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> tuple[Array, bool]:
        """Return a storage, and whether it holds bfloat16."""
        _, kind, key, _, count = pid
        dtype = np.dtype(_DTYPES[kind]).newbyteorder("<")
        data = np.frombuffer(self.archive.read(f"{self.folder}data/{key}"), dtype)
        if len(data) < count:
            raise pickle.UnpicklingError(f"storage {key} is truncated")
        return data, kind == "BFloat16Storage"


def _tensor(
    storage: tuple[Array, bool],
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *_: Any,
) -> Array:
    """Return a tensor of a storage; floats as fp32."""
    data, is_bfloat16 = storage
    stop = offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if offset < 0 or min((*size, *stride), default=0) < 0 or (stop > len(data) and 0 not in size):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    steps = [step * data.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(data[offset:], size, steps)
    if is_bfloat16:
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view.astype(np.float32) if data.dtype.kind == "f" else view.copy()
