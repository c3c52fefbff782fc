"""A matrix of integer codes whose parts (codes, scales, zero points) are tensors of their own in a Hugging Face folder.

What the parts mean is the business of `hf_quantized.py` and the files it knows; here they become a StoredTensor.
N rows (outputs), K columns (inputs), g columns share a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.weights.int_words import Bytes
from forerun.weights.stored import FORMATS, Codes, Rows, StoredTensor, WeightFormat, left_of

LARGEST_SCALE = 65504.0
"""Scales are held as fp16."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a reader made of the tensors: unsigned codes and zero points below 2 ** bits.

    `codes` (N, K), `scales` and `zeros` (N, K / g) fp32, and the group (K,) of each column where columns
    of a group do not lie together.
    """

    codes: Bytes
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray | None = None


def format_of(bits: int, *, is_symmetric: bool, has_order: bool) -> WeightFormat | None:
    """Return the format whose grid holds such codes exactly, None if there is none.

    Columns in another order become fp16 numbers, which is what kernels for such files compute with.
    """
    if has_order:
        return FORMATS["f16"]
    if bits == 8:
        return FORMATS["q8_0"] if is_symmetric else None
    return FORMATS["q4_0" if is_symmetric and bits == 4 else "q4_z"]


@dataclass(frozen=True, slots=True)
class CodedTensor(StoredTensor):
    """Codes that are unpacked when they are asked for. `data` are those of the file, which differ in layout."""

    bits: int
    read: Callable[[], Parts]
    index: Rows | None = None
    """The rows that are left, None for all."""

    def rows(self, index: Rows) -> Self:
        """Select some rows, with their codes and scales."""
        left = left_of(self.index, self.shape[0], index)
        return replace(self, shape=(len(left), self.shape[1]), index=left)

    def codes(self) -> Codes:
        """Return the codes of the format's own range. Raises LoadError for scales that are no numbers."""
        parts = self._parts()
        if parts.groups is not None:
            raise ValueError(f"'{self.name}' has groups whose columns do not lie together")
        if self.format.has_zero:
            return Codes(parts.codes.view(np.int8), parts.scales, None, parts.zeros)
        zero = np.uint8(1 << (self.bits - 1))
        return Codes((parts.codes - zero).view(np.int8), parts.scales, None)

    def dequantize(self) -> Tensor:
        """Return the values, fp32, shape `shape`."""
        if self.format.group is None:
            return self.plain().dequantize()
        return torch.from_numpy(self.codes().values())

    def plain(self) -> StoredTensor:
        """As numbers or codes that need no unpacking: columns in another order as fp16."""
        if self.format.group is not None:
            return self
        parts = self._parts()
        assert parts.groups is not None
        values = parts.codes.astype(np.float32) - parts.zeros[:, parts.groups]
        values *= parts.scales[:, parts.groups]
        data = np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)
        return StoredTensor(self.name, self.shape, self.format, data)

    def _parts(self) -> Parts:
        parts = self.read()
        if not (np.abs(parts.scales) <= LARGEST_SCALE).all():  # NaN is not either
            raise LoadError(f"the scales of '{self.name}' are not all numbers that fp16 can hold")
        if self.index is None:
            return parts
        left = self.index
        return replace(
            parts, codes=parts.codes[left], scales=parts.scales[left], zeros=parts.zeros[left]
        )
