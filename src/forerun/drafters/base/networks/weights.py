"""A drafting network's weights as the kernels take them, rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from forerun.core.arrays import Floats
from forerun.weights.codes import FORMATS, Bytes
from forerun.weights.rtn import HEAD_BITS, requantize
from forerun.weights.stored import StoredTensor

IDS = "i64"
"""The form of token ids."""


class NetworkWeights:
    """Matrices by the kernels' names, norms and token ids."""

    def __init__(self) -> None:
        self._weights: dict[str, tuple[str | None, tuple[int, ...], list[Bytes]]] = {}

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
            weights._weights[name] = form, values.shape, arrays
        return weights

    def add_ids(self, name: str, ids: Sequence[int] | np.ndarray) -> None:
        """Put token ids beside the weights."""
        self._weights[name] = IDS, (len(ids),), [_bytes(np.asarray(ids, np.int64))]

    def ids(self, name: str) -> list[int] | None:
        """Return token ids, None if there are none of that name."""
        if name not in self._weights:
            return None
        ids: list[int] = self._weights[name][2][0].view(np.int64).tolist()
        return ids

    def matrices(self) -> Iterator[tuple[str, str, int, Bytes]]:
        """Yield name, format, width and rows of blocks (N, bytes a row) of every matrix."""
        for name, (form, shape, arrays) in self._weights.items():
            if form is not None and form != IDS:
                yield name, form, shape[1], arrays[0].reshape(shape[0], -1)

    def norms(self) -> Iterator[tuple[str, Floats, Floats | None]]:
        """Yield name, weight and bias of every norm."""
        for name, (form, _, arrays) in self._weights.items():
            if form is None:
                weight, *bias = (array.view(np.float32) for array in arrays)
                yield name, weight, bias[0] if bias else None


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
