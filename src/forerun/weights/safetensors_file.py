"""A safetensors file, memory-mapped: its tensors as they are stored."""

from __future__ import annotations

import json
import mmap
from collections.abc import Set
from pathlib import Path

import numpy as np
import safetensors

from forerun.core.errors import LoadError
from forerun.system.opened import OpenedFile, open_noted
from forerun.weights.codes import FORMATS, WeightFormat
from forerun.weights.stored import StoredTensor

FLOATS = ("F32", "F16", "BF16")


def read_tensors(
    path: Path, names: Set[str] = frozenset(), opened: list[OpenedFile] | None = None
) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name, mapped here and not by the library, which keeps its pages.

    `names` are those that an index says it has; the file is added to those that were `opened`. Raises LoadError.
    """
    try:
        with open_noted(path, [] if opened is None else opened) as file:
            with safetensors.safe_open(path, framework="np"):  # checks the header
                pass
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
        dtype = entry["dtype"]
        format = FORMATS[dtype.lower()] if dtype in FLOATS else WeightFormat(dtype, 0)
        shape = tuple(entry["shape"])
        num_rows = max(shape[0], 1) if len(shape) > 1 else 1
        rows = data[slice(*entry["data_offsets"])].reshape(num_rows, -1)
        tensors[name] = StoredTensor(name, shape, format, rows)
    return tensors
