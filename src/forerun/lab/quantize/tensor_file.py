"""Writing safetensors files without a second copy of what goes into them: numbers go to disk as they come."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.system import files

_DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}
_DTYPES |= {"int8": "I8", "uint8": "U8"}


@dataclass(frozen=True, slots=True)
class Chunks:
    """A tensor of which some rows at a time are made."""

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Iterable[np.ndarray]


def write(
    path: Path, tensors: Mapping[str, np.ndarray | Chunks], known: Mapping[str, str] | None = None
) -> None:
    """Write a file in the place of what is there, with `known` as its metadata. Raises OSError."""
    # Large numbers first: all of them lie at multiples of their size, as readers ask for.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(known or {})}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.dtype.itemsize * math.prod(tensor.shape)
        header[name] = {
            "dtype": _DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with files.replacing(path, files.PUBLIC) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            for rows in tensor.rows if isinstance(tensor, Chunks) else (tensor,):
                file.write(np.ascontiguousarray(rows).data)
