"""A drafting network's weights as the kernels take them, rounded: packed once, read from disk by later starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from forerun.core.arrays import Floats
from forerun.model.packed.file import PackedFile, PackedWeight
from forerun.model.packed.layout import Bytes
from forerun.weights.codes import FORMATS
from forerun.weights.rtn import HEAD_BITS, requantize
from forerun.weights.stored import StoredTensor

IDS = "i64"
"""The form of token ids."""


class NetworkWeights:
    """Matrices by the kernels' names, norms and token ids. Implements `model.packed.PackedWeights`."""

    num_threads = 1

    def __init__(self) -> None:
        self._weights: dict[str, PackedWeight] = {}

    @classmethod
    def of(cls, tensors: Mapping[str, Floats], bits: int) -> NetworkWeights:
        """Round matrices to groups of 4 or 8 bits where their width has them, else to fp16; 32 rounds nothing."""
        weights = cls()
        for name, values in tensors.items():
            if name.endswith(".bias"):
                continue
            bias = tensors.get(f"{name}.bias")
            form, data = _rounded(name, values, bits) if values.ndim == 2 else (None, values)
            arrays = [_bytes(each) for each in (data, bias) if each is not None]
            weights._weights[name] = name, form, values.shape, arrays
        return weights

    @classmethod
    def load(cls, file: PackedFile | None) -> NetworkWeights | None:
        """Read the packed weights that an earlier start has written; None if there are none, or they do not fit."""
        weights = cls()
        return weights if file is not None and file.load(weights) else None

    def add_ids(self, name: str, ids: Sequence[int] | np.ndarray) -> None:
        """Put token ids beside the weights."""
        self._weights[name] = name, IDS, (len(ids),), [_bytes(np.asarray(ids, np.int64))]

    def ids(self, name: str) -> list[int] | None:
        """Return token ids, None if there are none of that name."""
        if name not in self._weights:
            return None
        ids: list[int] = self._weights[name][3][0].view(np.int64).tolist()
        return ids

    def matrices(self) -> Iterator[tuple[str, str, int, Bytes]]:
        """Yield name, format, width and rows of blocks (N, bytes a row) of every matrix."""
        for name, form, shape, arrays in self._weights.values():
            if form is not None and form != IDS:
                yield name, form, shape[1], arrays[0].reshape(shape[0], -1)

    def norms(self) -> Iterator[tuple[str, Floats, Floats | None]]:
        """Yield name, weight and bias of every norm."""
        for name, form, _, arrays in self._weights.values():
            if form is None:
                weight, *bias = (array.view(np.float32) for array in arrays)
                yield name, weight, bias[0] if bias else None

    def nbytes(self) -> int:
        """Count the bytes of all arrays."""
        return sum(array.nbytes for *_, arrays in self._weights.values() for array in arrays)

    def packed(self) -> Iterator[PackedWeight]:
        """Return everything, as a file holds it."""
        return iter(self._weights.values())

    def add_in_place(
        self, name: str, form: str | None, shape: Sequence[int], has_bias: bool, data: Bytes
    ) -> list[int]:
        """Take a weight, its bias behind it, as it lies at the beginning of `data`; return the bytes of each."""
        count = math.prod(shape)
        bits = 64 if form == IDS else 32 if form is None else FORMATS[form].bits_per_weight
        nbytes, arrays = round(count * bits / 8), list[Bytes]()
        for first in range(0, nbytes * (1 + has_bias), nbytes):
            taken = data[first : first + nbytes]
            if len(taken) < nbytes:
                raise ValueError(f"too few bytes for {name}")
            arrays.append(taken.copy() if form in (None, IDS) else taken)
        self._weights[name] = name, form, tuple(shape), arrays
        return [nbytes] * len(arrays)

    def check(self) -> None:
        """Leave the check to the network, which knows its shapes."""


def _rounded(name: str, values: Floats, bits: int) -> tuple[str, np.ndarray]:
    if bits in HEAD_BITS and values.shape[1] % 32 == 0:
        data = np.ascontiguousarray(values, np.float32).view(np.uint8)
        stored = requantize(StoredTensor(name, values.shape, FORMATS["f32"], data), bits)
        return stored.format.name, stored.data
    return ("f16", values.astype(np.float16)) if bits == 16 else ("f32", values)


def _bytes(values: np.ndarray) -> Bytes:
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
