"""Recurrent networks on a device, MLP speculators and LSTMs: csrc/drafters/recurrent_network.cpp.

R rows of a step, p inner width of G gates, E width of what a token adds: p, or G p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import triton
from numpy.typing import NDArray
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.layers import Norm
from forerun.gpu.matrices import Matrix
from forerun.gpu.networks.base import MAX_STEPS, Steps
from forerun.gpu.networks.recurrence import advance
from forerun.gpu.networks.steps import StepNetwork
from forerun.gpu.numbers import WIDE_LAUNCH
from forerun.weights.codes import FORMATS, Bytes
from forerun.weights.stored import StoredTensor

_INPUT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Cell:
    """The weights of a depth."""

    projection: Matrix
    table: StoredTensor | None
    """Embeddings; None: the target's."""
    norm: Norm


class GpuRecurrent(StepNetwork):
    """A network whose state after a token is made of the state before it and the token's embedding."""

    def __init__(
        self,
        target: GpuDecoder,
        inner_size: int,
        num_predict: int,
        max_depth: int,
        is_lstm: bool,
        scales_input: bool,
    ) -> None:
        """Raises ValueError for an inner size that the kernels do not read."""
        if inner_size % 16:
            raise ValueError("inner size must be a multiple of 16")
        super().__init__(target, max_depth)
        self._inner, self._max_depth, self._num_gates = inner_size, max_depth, 4 if is_lstm else 1
        self._token_weight = _native.token_weight(inner_size, num_predict)
        half = np.full(self.width, np.sqrt(np.float32(0.5)), np.float32)
        self._input_norm = Norm(target.to_device(half)) if scales_input else None
        self._tables: dict[str, StoredTensor] = {}
        """Embeddings, which stay on the host."""
        self._map: Matrix | None = None
        self._emb_size = 0
        self._cells: list[_Cell] = []
        self._state_norm: Norm | None = None
        self._keeps_mapped = False

    def set(self, name: str, format: str, num_in: int, rows: Bytes) -> None:
        """Take a matrix; tables of embeddings stay on the host."""
        if name.startswith("emb."):
            shape = len(rows), num_in
            self._tables[name] = StoredTensor(name, shape, FORMATS[format], rows)
        else:
            super().set(name, format, num_in, rows)

    def keep_mapped(self) -> None:
        """Round mapped embeddings of the head's tokens as the CPU keeps them."""
        self._keeps_mapped = True

    def nbytes(self) -> int:
        """Return the bytes of the weights, tables on the host included."""
        return super().nbytes() + sum(table.nbytes for table in self._tables.values())

    def check(self) -> None:
        """Find the weights by depth, as csrc/drafters/recurrent_network.cpp names them."""
        inner, gates = self._inner, self._num_gates * self._inner
        table, mapped = self._tables.get("emb.0"), self.matrices.get("map")
        self._map = mapped if table is None else None
        self._emb_size = self.width if self._map is None else self._map.num_out
        self._emb_size = self._emb_size if table is None else table.shape[1]
        if self._emb_size not in (inner, gates):
            raise ValueError(f"embeddings are {self._emb_size} wide, expected {inner}")
        named = self.matrices.keys() | self.norms.keys() | self._tables.keys()
        own = [i for i in range(self._max_depth) if {f"{k}.{i}" for k in _BY_DEPTH} & named]
        self.num_depths = max([*own, min(1, self._max_depth - 1)]) + 1
        self._cells = []
        projection: Matrix
        norm: Norm
        for i in range(self.num_depths):  # those that are missing are the depth's before
            if i < 2 or f"proj.{i}" in self.matrices:
                projection = self.matrix(f"proj.{i}", gates, inner if i else self.width)
            if i == 0 or f"ln.{i}" in self.norms:
                norm = self.norm(f"ln.{i}", inner)
            table = self._tables.get(f"emb.{i}", table)
            self._cells.append(_Cell(projection, table, norm))
        self._state_norm = self.norm("state_ln", inner) if self._num_gates > 1 else None
        self.check_heads(inner)

    def step_inputs(self, steps: Steps) -> tuple[NDArray[np.int32], Floats]:
        """Return the places (3, R) of `advance`, and what the first rows begin with and the tokens' embeddings."""
        first, tokens = steps.sequences * MAX_STEPS, steps.tokens.astype(np.int64)
        above = np.where(steps.above < 0, -1, first + steps.above)
        table = self._cells[self.own_depth(steps)].table
        embedded = self.target.embed(tokens) if table is None else table.rows(tokens).dequantize()
        places = np.stack((first + steps.numbers, above, self._rounds(steps))).astype(np.int32)
        return places, np.concatenate((self.seeds[steps.sequences], embedded), 1)

    def compute(self, numbers: Tensor, given: Tensor, depth: int, *, is_first: bool) -> Tensor:
        """Compute the states (R, p) of rows of one depth's weights."""
        num, inner, cell = len(given), self._inner, self._cells[depth]
        states = self.buffers.floats("states", self.num_sequences * MAX_STEPS, 2, inner)
        seeds, embedded = (x.contiguous() for x in given.tensor_split((self.width,), 1))
        x, norm = seeds, self._input_norm
        if not is_first:
            x, norm = states[:, 0].index_select(0, numbers[1]), None
        gates = self.room("gates", num, self._num_gates * inner)
        read = self.read("state", x, cell.projection, norm, _INPUT_EPS)
        cell.projection.multiply(read, num, gates)
        added = self._mapped(embedded)
        out, state_norm = self.room("out", num, inner), self._state_norm or cell.norm
        advance[(num,)](
            gates, added, numbers, num, self._token_weight, *_vectors(cell.norm), *_vectors(state_norm), self.eps,
            states, out, P=inner, G=self._num_gates, E=self._emb_size, WIDE=triton.next_power_of_2(inner),
            HAS_BIAS=cell.norm.bias is not None, STATE_HAS_BIAS=state_norm.bias is not None, **WIDE_LAUNCH,
        )  # fmt: skip
        return out

    def _mapped(self, embedded: Tensor) -> Tensor:
        """Return what tokens add (R, E), mapped where there is a map."""
        if self._map is None:
            return embedded
        mapped = self.room("mapped", len(embedded), self._emb_size)
        self._map.multiply(self.read("embedded", embedded, self._map), len(embedded), mapped)
        return mapped

    def _rounds(self, steps: Steps) -> np.ndarray:
        """Return of which tokens (R,) mapped embeddings are rounded."""
        if self._map is None or self.tokens is None or not self._keeps_mapped:
            return np.zeros(len(steps.tokens), np.bool_)
        return np.isin(steps.tokens, self.tokens)


_BY_DEPTH = ("proj", "emb", "ln", "head")


def _vectors(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return a norm's weight and bias, or what stands for it."""
    return norm.weight, norm.weight if norm.bias is None else norm.bias
