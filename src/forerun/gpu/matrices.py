"""Matrices on the device: stored tensors laid out for the kernels piece by piece, and rows multiplied by them.

N outputs, K inputs, ROWS rows that buffers have room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
import triton
from torch import Tensor
from triton import knobs

from forerun.core.errors import LoadError
from forerun.gpu.codes import FLOATS, LAYOUTS, SUPER, Layout
from forerun.gpu.kernels import float_linear, linear
from forerun.gpu.numbers import LAUNCH
from forerun.weights.codes import FLOAT8_GROUP, Codes, WeightFormat
from forerun.weights.stored import StoredTensor

ROWS = 256
"""Rows of a pass, at most; of all buffers of rows."""
TALL = 64
"""Height of a tile where there are more rows than 16."""
PIECE = 1 << 24
"""Codes that are laid out on the host at a time."""
BLOCK_N = 1024 if knobs.runtime.interpret else 32
"""Outputs of a program, which change no bit; the interpreter takes its time by program."""
_FACTORS_AT = {"q2_k": 80, "q3_k": 108, "q4_k": 0, "q5_k": 0, "q6_k": 208}
"""Where a block's fp16 factors lie: of scales and, if there are any, of minima."""
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8": torch.uint8}
Part = tuple[StoredTensor, StoredTensor | None]
"""A matrix as stored, and its bias."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that matrices read: floats (ROWS, K), and int8 codes with scales and sums (K / 32, ROWS)."""

    floats: Tensor
    codes: Tensor
    scales: Tensor
    sums: Tensor

    @classmethod
    def of_width(cls, width: int, device: torch.device | str, num_rows: int = ROWS) -> Rows:
        """Make room for so many rows of that width."""
        numbers = (torch.zeros(-(-width // 32), num_rows, device=device) for _ in range(2))
        codes = torch.zeros(num_rows, width, dtype=torch.int8, device=device)
        return cls(torch.zeros(num_rows, width, device=device), codes, *numbers)

    @property
    def coded(self) -> tuple[Tensor, Tensor, Tensor]:
        """The codes with their scales and sums."""
        return self.codes, self.scales, self.sums


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows and the experts that they have chosen: pair `num_active r + i` is the row r and its expert i, ascending."""

    lists: Tensor
    """(experts, ROWS): the pairs of each expert, ascending, then -1."""
    num_active: int

    @property
    def num_experts(self) -> int:
        """Experts."""
        return len(self.lists)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights (N, K) on the device, and a bias (N,) if there is one."""

    num_out: int
    num_in: int
    layout: Layout | None
    """None: floats."""
    weights: Tensor
    more: Tensor
    """Words of the bits above 4."""
    scales: Tensor
    factors: Tensor
    mins: Tensor
    min_factors: Tensor
    bias: Tensor
    has_bias: bool
    order: Tensor | None = None
    """Of the columns (K,) of rows that it reads, where they have one of their own (GPTQ's act-order)."""

    @classmethod
    def blank(
        cls,
        format: WeightFormat,
        num_out: int,
        num_in: int,
        group: int | None,
        has_bias: bool,
        device: torch.device | str,
    ) -> Matrix:
        """Make room for a matrix whose scales serve `group` inputs, None: as the format has it. Raises LoadError."""
        name = format.name
        if name not in FLOATS and name not in LAYOUTS:
            raise LoadError(f"{name} is not read on a GPU; use --device cpu")

        def room(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        none = room(0, dtype=torch.float32)
        bias = room(num_out, dtype=torch.float32) if has_bias else none
        if name in FLOATS:
            weights = room(num_in, num_out, dtype=_DTYPES[name])
            is_coded = name == "f8"
            count = -(-num_in // FLOAT8_GROUP)
            scales = room(count, num_out, dtype=torch.float32) if is_coded else none
            others = none, none, none
            return cls(num_out, num_in, None, weights, none, scales, *others, bias, has_bias)
        layout = LAYOUTS[name]
        layout = layout if group is None else replace(layout, scale_group=group)
        shared = 8 // layout.bits
        byte = torch.int8 if layout.bits == 8 else torch.uint8
        weights = room(-(-num_in // 32 // shared), num_out, 32, dtype=byte)
        more = room(layout.more_bits, num_in // 32, num_out, dtype=torch.int32)
        numbers, factors = (num_in // layout.scale_group, num_out), (num_in // SUPER, num_out)
        whole = torch.int8 if layout.has_factors else torch.float16
        whole = torch.float32 if name.startswith(("mxfp4", "iq")) else whole

        def pair(wanted: bool) -> tuple[Tensor, Tensor]:
            found = room(*numbers, dtype=whole) if wanted else none
            is_super = wanted and layout.has_factors
            return found, room(*factors, dtype=torch.float16) if is_super else none

        return cls(
            num_out, num_in, layout, weights, more if layout.more_bits else none,
            *pair(True), *pair(layout.has_mins), bias, has_bias,
        )  # fmt: skip

    @classmethod
    def pack(cls, parts: Sequence[Part], device: torch.device | str) -> Matrix:
        """Lay out matrices of one format and group, one below the other; all have biases or none. Raises LoadError."""
        first, bias = parts[0]
        num_out = sum(stored.shape[0] for stored, _ in parts)
        made = cls.blank(
            first.format, num_out, first.shape[1], _group_of(first), bias is not None, device
        )
        if (order := _order_of(first)) is not None:
            made = replace(made, order=torch.from_numpy(order).to(device))
        start = 0
        for stored, offset in parts:
            if offset is not None:
                made._put(made.bias[start : start + stored.shape[0]], offset.dequantize())
            for piece in _pieces(stored):
                made._fill(start, piece)
                start += piece.shape[0]
        return made

    def _fill(self, start: int, stored: StoredTensor) -> None:
        """Lay out some rows, which are outputs from `start` on."""
        here, layout = slice(start, start + stored.shape[0]), self.layout
        if layout is None and stored.format.name != "f8":
            words = np.ascontiguousarray(stored.data).view(f"u{stored.format.block_nbytes}")
            self._put(self.weights[:, here], words.reshape(stored.shape).T)
            return
        codes = stored.codes()
        if codes.flat is not None:
            raise LoadError(
                f"'{stored.name}' is flattened, which a GPU does not read; use --device cpu"
            )
        if codes.order is not None:
            codes = replace(codes, codes=codes.codes[:, codes.order], groups=None)
        if layout is None:
            self._put(self.weights[:, here], codes.codes.view(np.uint8).T)
            self._put(self.scales[:, here], codes.scales.T)
            return
        self._fill_codes(here, codes, layout)
        offsets = codes.mins if codes.zeros is None else -codes.zeros
        if not layout.has_factors:
            self._put(self.scales[:, here], codes.scales.T)
            if offsets is not None:
                self._put(self.mins[:, here], offsets.T)
            return
        at = _FACTORS_AT[stored.format.name]
        blocks = stored.data.reshape(stored.shape[0], -1, stored.format.block_nbytes)
        halves = np.ascontiguousarray(blocks[..., at : at + 4]).view(np.float16)
        self._put_numbers(self.scales[:, here], self.factors[:, here], codes.scales, halves[..., 0])
        if offsets is not None:
            self._put_numbers(
                self.mins[:, here], self.min_factors[:, here], offsets, -halves[..., 1]
            )

    def _fill_codes(self, here: slice, codes: Codes, layout: Layout) -> None:
        zero = layout.zero
        if layout.bits == 8:
            less = codes.codes.view(np.uint8) ^ np.uint8(0 if zero == 0 else 128)
            self._put(
                self.weights[:, here], less.view(np.int8).reshape(len(less), -1, 32).swapaxes(0, 1)
            )
            return
        plain = codes.codes.view(np.uint8) + np.uint8(zero)
        groups = plain.reshape(len(plain), -1, 32)
        low = groups & 15
        if low.shape[1] % 2:
            low = np.pad(low, ((0, 0), (0, 1), (0, 0)))
        self._put(self.weights[:, here], (low[:, ::2] | low[:, 1::2] << 4).swapaxes(0, 1))
        for bit in range(layout.more_bits):
            words = np.packbits(groups >> (4 + bit) & 1, axis=-1, bitorder="little").view(np.int32)
            self._put(self.more[bit][:, here], words[..., 0].T)

    def _put_numbers(
        self, numbers: Tensor, factors: Tensor, products: np.ndarray, halves: np.ndarray
    ) -> None:
        """Take products of whole numbers and fp16 factors, which fp32 holds exactly, apart again."""
        wide = np.repeat(halves.astype(np.float32), products.shape[1] // halves.shape[1], axis=1)
        whole = np.divide(products, wide, out=np.zeros_like(products), where=wide != 0)
        self._put(numbers, np.rint(whole).T)
        self._put(factors, halves.T)

    @staticmethod
    def _put(room: Tensor, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        if values.dtype.kind == "u" and values.dtype.itemsize > 1:  # floats as words
            values = values.view(f"i{values.dtype.itemsize}")
            room.copy_(torch.from_numpy(values).view(room.dtype))
        else:
            room.copy_(torch.from_numpy(values).to(room.dtype))

    def outputs(self, ids: Tensor) -> Matrix:
        """Return a copy of some outputs (n,), one below the other."""

        def some(tensor: Tensor, axis: int) -> Tensor:
            return tensor.index_select(axis, ids) if tensor.numel() else tensor

        return replace(
            self, num_out=len(ids), weights=some(self.weights, 1), more=some(self.more, 2),
            scales=some(self.scales, 1), factors=some(self.factors, 1), mins=some(self.mins, 1),
            min_factors=some(self.min_factors, 1), bias=some(self.bias, 0),
        )  # fmt: skip

    def nbytes(self) -> int:
        """Return the bytes on the device."""
        return sum(tensor.nbytes for tensor in self._tensors)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        numbers = (self.scales, self.factors, self.mins, self.min_factors)
        return self.weights, self.more, *numbers, self.bias

    @property
    def reads_codes(self) -> bool:
        """Whether it reads int8 rows, or floats."""
        return self.layout is not None

    @property
    def reads_floats(self) -> bool:
        """The opposite."""
        return self.layout is None

    def multiply(
        self,
        rows: Rows,
        num_rows: int,
        out: Tensor,
        *,
        adds: bool = False,
        multiplier: float = 1.0,
        block: int = BLOCK_N,
        pairs: Pairs | None = None,
        reads_pairs: bool = False,
    ) -> None:
        """Multiply rows, into out (ROWS, any), or added to it times a multiplier.

        A matrix of experts multiplies the rows of `pairs`, or `reads_pairs`, one a pair: out (pairs, any).
        """
        num_experts = 1 if pairs is None else pairs.num_experts
        tall, outputs = 16 if num_rows <= 16 or pairs else TALL, self.num_out // num_experts
        grid = (triton.cdiv(outputs, block), num_experts * triton.cdiv(num_rows, tall))
        shape = {"HAS_BIAS": self.has_bias, "ADDS": adds, "BLOCK_M": tall, "BLOCK_N": block}
        shape |= {"SHARE": 0, "OUTPUTS": outputs, "MOST": ROWS}
        if pairs is not None:
            shape["SHARE"] = 1 if reads_pairs else pairs.num_active
        lists = self.bias if pairs is None else pairs.lists
        sizes = lists, num_rows, self.num_out, out.stride(0), multiplier
        if self.layout is None:
            is_coded = self.weights.dtype == torch.uint8
            float_linear[grid](
                rows.floats, self.weights, self.scales, self.bias, out, *sizes, K=self.num_in, X=rows.floats.stride(0),
                GROUP_K=FLOAT8_GROUP if is_coded else self.num_in, IS_FLOAT8=is_coded, **shape, **LAUNCH,
            )  # fmt: skip
            return
        linear[grid](
            *rows.coded, *self._tensors, out, *sizes, K=self.num_in, ROWS=len(rows.codes), **self.layout.constants(),
            **shape, **LAUNCH,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices that read the same rows, one below the other: those of one format as one."""

    parts: tuple[Matrix, ...]

    @classmethod
    def pack(cls, parts: Sequence[Part], device: torch.device | str) -> Stack:
        """Lay out matrices, in this order. Raises LoadError for a format that is not read."""
        unpacked = [(stored.unpacked(), bias) for stored, bias in parts]
        alike = groupby(
            unpacked,
            lambda part: (
                part[0].format,
                _group_of(part[0]),
                _order_of(part[0]) is None,
                part[1] is None,
            ),
        )
        made = cls(tuple(Matrix.pack([*each], device) for _, each in alike))
        if any(
            part.reads_codes and (part.order is None) != (made.order is None) for part in made.parts
        ):
            name = parts[0][0].name
            raise LoadError(
                f"'{name}' has columns in another order than what reads the same rows; use --device cpu"
            )
        return made

    @property
    def num_out(self) -> int:
        """Outputs of all."""
        return sum(part.num_out for part in self.parts)

    @property
    def order(self) -> Tensor | None:
        """Of the columns of rows that they read; those that have one have the same."""
        return next((part.order for part in self.parts if part.order is not None), None)

    @property
    def reads_codes(self) -> bool:
        """Whether any of them reads int8 rows."""
        return any(part.reads_codes for part in self.parts)

    @property
    def reads_floats(self) -> bool:
        """Whether any of them reads floats."""
        return any(part.reads_floats for part in self.parts)

    def nbytes(self) -> int:
        """Return the bytes on the device."""
        return sum(part.nbytes() for part in self.parts)

    def multiply(
        self, rows: Rows, num_rows: int, out: Tensor, *, adds: bool = False, multiplier: float = 1.0
    ) -> None:
        """Multiply rows, into the columns of out (ROWS, outputs), or added to it times a multiplier."""
        start = 0
        for part in self.parts:
            part.multiply(rows, num_rows, out[:, start:], adds=adds, multiplier=multiplier)
            start += part.num_out


def _group_of(stored: StoredTensor) -> int | None:
    """Return how many inputs share a scale where a folder says so, None for the format's own number."""
    if stored.read is None or stored.format.name == "f8":
        return None
    return stored.shape[1] // stored.codes().scales.shape[1]


def _order_of(stored: StoredTensor) -> np.ndarray | None:
    """Return the columns of groups one after the other; None if they lie so."""
    return None if stored.read is None else stored.codes().order


def _pieces(stored: StoredTensor) -> Iterator[StoredTensor]:
    """Yield a few rows at a time, in order."""
    num_rows, width = stored.shape
    step = max(1, PIECE // width)
    for start in range(0, num_rows, step):
        yield stored.rows(slice(start, min(num_rows, start + step)))
