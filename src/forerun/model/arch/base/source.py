"""Where the weights lie in a checkpoint, and how they are cut out of its tensors: fused, interleaved, one an expert."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.model.config import ModelConfig
from forerun.weights.codes import FORMATS, WeightFormat
from forerun.weights.stored import StoredTensor, stacked

Kind = Literal["hf", "gguf"]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a canonical weight lies: a tensor of the checkpoint, without `.weight`."""

    name: str
    """`{i}` stands for the layer, `{e}` for each expert in turn: then there is a tensor for each."""
    part: slice | tuple[slice, ...] | None = None
    """Its rows, if it lies in a fused tensor of `num_rows` rows; of each expert, if they lie in one tensor.

    Of several parts the first comes first."""
    num_rows: int = 0
    num_runs: int = 1
    """The fused tensor has so many runs of `num_rows` rows, and the weight the parts of each."""
    is_interleaved: bool = False
    """The rows of each head that are rotated are 0, R/2, 1, R/2 + 1, ... instead of 0, 1, 2, ... (R of `head_dim`)."""
    head_dim: int = 0
    """Of such heads; 0: the model's."""
    factor: float = 1.0
    offset: float = 0.0
    """What its numbers are multiplied by, and what is added: 1 for norms that multiply by 1 + w."""
    is_log: bool = False
    """Numbers a stand for -exp(a), as in the decays of heads with a state."""
    is_flat: bool = False
    """A vector that the file may have in another shape."""
    num_experts: int = 0
    """Of a weight of experts; they lie in a tensor (experts, out, in) or in one each."""
    is_transposed: bool = False
    """The tensor of the experts is (experts, in, out)."""
    may_be_transposed: bool = False
    """It may be either."""
    num_transposed: int = 0
    """Of a weight that has so many matrices one below the other: each is stored transposed."""
    suffixes: tuple[str, str] = (".weight", ".bias")
    otherwise: TensorSource | None = None
    """Where to look if it is not there."""

    def resolve(self, layer: str, names: Container[str]) -> TensorSource:
        """Return this source or, if its first tensor is not there but that of another name is, the other."""
        source: TensorSource | None = self
        while source is not None and source.tensors(layer)[0] not in names:
            source = source.otherwise
        return source or self

    def tensors(self, layer: str, is_bias: bool = False) -> list[str]:
        """Return the names of the weight's tensors, or of its bias's."""
        experts = range(self.num_experts if "{e}" in self.name else 1)
        suffix = self.suffixes[is_bias]
        return [self.name.format(i=layer, e=e) + suffix for e in experts]

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of each of the checkpoint's tensors, from that of the weight or of its bias."""
        rows, *others = shape
        if self.num_transposed:
            rows, others = others[0] * self.num_transposed, [rows // self.num_transposed]
        rows = rows // (self.num_experts or 1)
        if self.part is not None:
            rows = self.num_rows * self.num_runs
        shape = (rows, *others)
        if self.num_experts == 0 or "{e}" in self.name:
            return shape
        return (self.num_experts, *(shape[::-1] if self.is_transposed else shape))

    def fits(self, stored: tuple[int, ...], expected: tuple[int, ...]) -> bool:
        """Return whether a tensor of the checkpoint has the shape `expected`, or as many numbers where shapes vary."""
        if self.is_flat:
            return math.prod(stored) == math.prod(expected)
        return stored == expected or (
            self.may_be_transposed
            and len(stored) == 3
            and (stored[0], stored[2], stored[1]) == expected
        )

    def take(self, parts: Sequence[StoredTensor], config: ModelConfig) -> StoredTensor:
        """Return the weight or the bias from the checkpoint's tensors, each of the shape `stored_shape`."""
        stored = self._cut(self._joined(parts, config), config)
        for part in parts:
            if not np.may_share_memory(part.data, stored.data):  # what was copied is not needed
                part.release()
        if self.is_flat:
            stored = stored.flat()
        if self.is_log:
            return stored.changed(
                lambda values: -np.exp(values, dtype=np.float64).astype(np.float32)
            )
        if (self.factor, self.offset) == (1.0, 0.0):
            return stored
        return stored.changed(lambda values: values * self.factor + self.offset)

    def _cut(self, stored: StoredTensor, config: ModelConfig) -> StoredTensor:
        """Return the rows of the weight, in its order."""
        if isinstance(self.part, slice) and self.num_runs == 1 and not self.num_experts:
            stored = stored.rows(self.part)
        elif self.part is not None:
            stored = stored.rows(self._picked(stored.shape[0]))
        if self.is_interleaved:
            stored = stored.flat() if self.is_flat else stored
            stored = stored.rows(self.halves(stored.shape[0], config))
        return self._transposed(stored) if self.num_transposed else stored

    def places(self, num_rows: int, config: ModelConfig) -> NDArray[np.int64]:
        """Return where a weight of so many rows has each of them in its tensor, which is not one of experts."""
        places = np.arange(num_rows, dtype=np.int64)
        if self.part is not None:
            places = self._picked(self.num_rows * self.num_runs)
        return places[self.halves(num_rows, config)] if self.is_interleaved else places

    def _picked(self, count: int) -> NDArray[np.int64]:
        """Return which of the `count` rows of a fused tensor are the weight's, in its order."""
        runs = np.arange(count, dtype=np.int64).reshape(-1, self.num_rows)
        parts = (self.part,) if isinstance(self.part, slice) else self.part or ()
        return np.concatenate([runs[:, part].reshape(-1) for part in parts])

    def halves(self, num_rows: int, config: ModelConfig) -> NDArray[np.int64]:
        """Return where an interleaved weight has each of its rows: first of each pair, second of each, others."""
        dim = rotated = self.head_dim or config.head_dim
        if not self.head_dim:
            kinds = (config.layer(i).rope for i in range(config.num_layers))
            rotated = next((rope.rotary_dim for rope in kinds if rope is not None), dim)
        heads = np.arange(num_rows, dtype=np.int64).reshape(-1, dim)
        parts = heads[:, :rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]
        return np.concatenate(parts, axis=1).reshape(-1)

    def _transposed(self, stored: StoredTensor) -> StoredTensor:
        """Return matrices one below the other, each transposed: codes as fp16."""
        if stored.read is not None or stored.format.group is not None:
            data = stored.dequantize().astype(np.float16).view(np.uint8)
            stored = StoredTensor(stored.name, stored.shape, FORMATS["f16"], data)
        rows, columns = stored.shape
        parts = replace(stored, shape=(self.num_transposed, rows // self.num_transposed, columns))
        return parts.transposed().merged()

    def stored_format(self, form: WeightFormat) -> WeightFormat:
        """Return the format that `take` gives of a tensor's."""
        return FORMATS["f16"] if self.num_transposed and form.group is not None else form

    def _joined(self, parts: Sequence[StoredTensor], config: ModelConfig) -> StoredTensor:
        """Return the experts' rows one below the other."""
        if "{e}" in self.name:
            return stacked(parts)
        stored = parts[0]
        if len(stored.shape) == 3:
            is_other = stored.shape[1] != (self.num_rows or config.hidden_size)
            if self.is_transposed or (self.may_be_transposed and is_other):
                stored = stored.transposed()
        return stored.merged() if self.num_experts else stored
