"""How keys and values are stored: as floats, as int8 with scales, or as int4 with a scale and minimum a group.

The definition of what the native cache does; there a row's codes lie where its kernels want them.
Keys as int8 or int4 round queries to int8 as well, so that the products with keys are whole numbers.
`k8v4` has int8 keys and int4 values: a key's error is in the exponent of a softmax, a value's is averaged
(KIVI, arXiv 2402.02750, keeps the two apart as well).

E head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.config import Precision
from forerun.model.cache.int4 import GROUP, check_head_dim


@dataclass(frozen=True, slots=True)
class Floats:
    """Rows (..., E) as numbers of a floating type."""

    dtype: torch.dtype

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the numbers (..., E)."""
        return (rows.to(self.dtype),)

    def decode(self, stored: tuple[Tensor, ...]) -> Tensor:
        """Return the rows as fp32; a view where possible."""
        return stored[0].float()

    def query(self, query: Tensor) -> Tensor:
        """Leave queries as they are."""
        return query


class Int8:
    """code * scale, with fp32 scale = largest / 127 of the row: values."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the codes (..., E) int8 and scales (..., 1) fp32."""
        top = rows.abs().amax(-1, keepdim=True)
        inverse = torch.where(top < 1e-30, 0.0, 127 / top)
        return (rows * inverse).round().to(torch.int8), torch.where(top < 1e-30, 0.0, top / 127)

    def decode(self, stored: tuple[Tensor, ...]) -> Tensor:
        """Return the rows as fp32."""
        codes, scales = stored
        return codes.float() * scales

    def query(self, query: Tensor) -> Tensor:
        """Round queries (..., E) to int8."""
        return self.decode(self.encode(query))


class Int8Keys(Int8):
    """code * scale, with fp16 scale = largest / 127 of GROUP dimensions; the last group may be smaller."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the codes (..., E) int8 and scales (..., ceil(E / GROUP)) fp16."""
        groups = _groups(rows)
        top = groups.abs().amax(-1, keepdim=True)
        scales = torch.where(top < 1e-30, 0.0, top / 127).half()
        inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
        codes = (groups * inverse).clamp(-127, 127).round().to(torch.int8)
        return codes.flatten(-2)[..., : rows.shape[-1]], scales.squeeze(-1)

    def decode(self, stored: tuple[Tensor, ...]) -> Tensor:
        """Return the rows as fp32."""
        codes, scales = stored
        return codes.float() * scales.float().repeat_interleave(GROUP, -1)[..., : codes.shape[-1]]

    def query(self, query: Tensor) -> Tensor:
        """Round queries (..., E) as `Int8` does."""
        return Int8().query(query)


def _groups(rows: Tensor) -> Tensor:
    """Return rows (..., E) in groups (..., ceil(E / GROUP), GROUP), the last one filled with zeros."""
    return functional.pad(rows, (0, -rows.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))


class Int4:
    """code * scale + minimum, code 0 to 15, with fp16 scale = (largest - minimum) / 15 of GROUP dimensions."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return two codes a byte (..., E / 2), scales and minima (..., E / GROUP) fp16."""
        groups = rows.unflatten(-1, (-1, GROUP))
        least = groups.amin(-1, keepdim=True)
        scale = ((groups.amax(-1, keepdim=True) - least) / 15).half()
        least = least.half()
        inverse = torch.where(scale > 0, 1 / scale.float(), 0.0)
        codes = (
            ((groups - least.float()) * inverse).clamp(0, 15).round().to(torch.uint8).flatten(-2)
        )
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        return packed, scale.squeeze(-1), least.squeeze(-1)

    def decode(self, stored: tuple[Tensor, ...]) -> Tensor:
        """Return the rows as fp32."""
        packed, scale, least = stored
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).float()
        groups = codes.unflatten(-1, (-1, GROUP)) * scale.float()[..., None]
        return (groups + least.float()[..., None]).flatten(-2)

    def query(self, query: Tensor) -> Tensor:
        """Round queries (..., E) as `Int8` does."""
        return Int8().query(query)


Form = Floats | Int8 | Int4


def forms_of(kv: Precision, head_dim: int, value_dim: int | None = None) -> tuple[Form, Form]:
    """Return the forms of keys and values; `auto` is fp32. Raises ConfigError as `check_head_dim` does."""
    check_head_dim(kv, head_dim, value_dim)
    if kv == "k8v4":
        return Int8Keys(), Int4()
    if kv == "int8":
        return Int8Keys(), Int8()
    form = _FORMS.get(kv, Floats(torch.float32))
    return form, form


_FORMS: dict[str, Form] = {"fp16": Floats(torch.float16), "int4": Int4()}
