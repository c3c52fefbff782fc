"""A layer of the decoder as launches of the kernels: none knows more of a pass than its numbers.

R rows, D hidden width, H heads, G kv heads, E head dim, F width of the MLP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import triton
from torch import Tensor

from forerun.gpu.attention import attend, merge
from forerun.gpu.cache import Layer as CacheLayer
from forerun.gpu.experts import Experts, add_experts
from forerun.gpu.kernels import norm, swiglu
from forerun.gpu.matrices import ROWS, Matrix, Rows, Stack
from forerun.gpu.numbers import LAUNCH, WIDE_LAUNCH
from forerun.gpu.passes import Angles, Pass
from forerun.gpu.placement import place
from forerun.model.config import ModelConfig

_GROUPS_OF_A_PROGRAM = 16
"""Groups of 32 numbers that a program of `swiglu` activates."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Weights (D,) and, of some layer norms, a bias (D,)."""

    weight: Tensor
    bias: Tensor | None = None

    def nbytes(self) -> int:
        """Return the bytes on the device."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a pass keeps of its rows, made as it is first needed and shared by all layers."""

    device: torch.device
    kept: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[tuple[str, int], Rows] = field(default_factory=dict)

    def floats(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the buffer of that name in a shape: the same memory for each that fits into it."""
        size = math.prod(shape)
        if name not in self.kept or self.kept[name].numel() < size:
            self.kept.pop(name, None)  # freed before the larger one is there
            self.kept[name] = torch.zeros(size, dtype=dtype, device=self.device)
        return self.kept[name][:size].view(shape)

    def read(self, name: str, width: int, num_rows: int = ROWS) -> Rows:
        """Return so many rows of that name and width, to be read by matrices."""
        if (name, width) not in self.rows:
            self.rows[name, width] = Rows.of_width(width, self.device, num_rows)
        return self.rows[name, width]


def put_norm(
    x: Tensor, weights: Norm | None, config: ModelConfig, num_rows: int, *, to: Rows | None = None,
    readers: Sequence[Stack | Matrix] = (), out: Tensor | None = None, adds: bool = False,
) -> None:  # fmt: skip
    """Norm rows x (ROWS, D): for the matrices that read them, to floats `out`, or added to it.

    Without weights they are handed on as they are. Rows of `out` are as far apart as those of x.
    """
    width = x.shape[1]
    rows = to if to is not None else Rows(x, x, x, x)
    to_codes = any(reader.reads_codes for reader in readers)
    to_floats = any(reader.reads_floats for reader in readers) or (out is not None and not adds)
    weight = x if weights is None else weights.weight
    bias = weight if weights is None or weights.bias is None else weights.bias
    orders = [reader.order for reader in readers if reader.order is not None]
    norm[(num_rows,)](
        x, weight, bias, orders[0] if orders else weight, config.norm_eps, config.residual_multiplier if adds else 1.0,
        rows.floats if out is None else out, *rows.coded,
        D=width, X=x.stride(0), HAS_ORDER=bool(orders), GROUPS=triton.next_power_of_2(-(-width // 32)), ROWS=ROWS,
        HAS_NORM=weights is not None,
        IS_LAYER=config.norm == "layer", HAS_BIAS=weights is not None and weights.bias is not None,
        TO_CODES=to_codes, TO_FLOATS=to_floats, ADDS=adds, **LAUNCH,
    )  # fmt: skip


def put_activation(
    up: Tensor, num_rows: int, kind: str, to: Rows, *, is_gated: bool = False, to_codes: bool = False
) -> None:  # fmt: skip
    """Activate rows [gate | up] (R, 2 F), or up (R, F): as floats (R, F), or as codes."""
    width = to.floats.shape[1]
    swiglu[(num_rows, triton.cdiv(-(-width // 32), _GROUPS_OF_A_PROGRAM))](
        up, to.floats, *to.coded, F=width, KIND=kind, IS_GATED=is_gated, TO_CODES=to_codes,
        GROUPS=_GROUPS_OF_A_PROGRAM, ROWS=len(to.codes), **LAUNCH,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, and what it computes."""

    config: ModelConfig
    index: int
    norms: Mapping[str, Norm]
    """By their short names; those of heads and sinks too."""
    qkv: Stack
    o: Stack
    up: Stack | None
    """gate and up, or up; None where there are only experts."""
    down: Stack | None
    experts: Experts | None
    angles: Angles | None
    head_norms: Tensor | None
    """(H + G, E)."""
    fills_blocks: bool = False
    """Whether windows count the rows before a segment."""
    is_bidirectional: bool = False
    """Whether a row sees the later ones of its segment too."""

    def run(
        self,
        x: Tensor,
        rows: Pass,
        cache: CacheLayer,
        buffers: Buffers,
        attention: Tensor | None = None,
    ) -> None:
        """Bring x (ROWS, D) through the layer, whose attention reads the normed x or what it is given (ROWS, any)."""
        config, norms, num = self.config, self.norms, rows.num_rows
        normed = buffers.read("normed", config.hidden_size)
        is_parallel = config.norms == "parallel"
        of_mlp = (
            *(() if self.up is None else (self.up,)),
            *(() if self.experts is None else self.experts.readers),
        )
        readers = (self.qkv, *of_mlp) if is_parallel else (self.qkv,)
        if attention is None:
            put_norm(x, norms.get("attn_norm"), config, num, to=normed, readers=readers)
            q = self._place(normed, rows, cache, buffers)
        else:
            q = self.write_kv(attention, rows, cache, buffers)
        attended = self._attend(q, rows, cache, buffers)
        self._add(self.o, attended, x, num, "attn_out_norm", buffers)
        if not is_parallel:
            put_norm(x, norms.get("mlp_norm"), config, num, to=normed, readers=of_mlp)
        if self.up is not None and self.down is not None:
            up = buffers.floats("up", ROWS, self.up.num_out)
            self.up.multiply(normed, num, up)
            activated = buffers.read("activated", self.down.parts[0].num_in)
            self._activate(up, num, activated, self.down)
            self._add(self.down, activated, x, num, "mlp_out_norm", buffers)
        if self.experts is not None:
            self._add_experts(self.experts, normed, x, num, buffers)

    def _add_experts(
        self, experts: Experts, normed: Rows, x: Tensor, num: int, buffers: Buffers
    ) -> None:
        """Add to x what a row's experts give."""
        pairs, weights = experts.choose(
            normed, num, self.config.residual_multiplier, buffers.floats
        )
        num_pairs = ROWS * pairs.num_active
        activated = buffers.read("activated of experts", experts.shape.intermediate_size, num_pairs)

        def activate(up: Tensor) -> Rows:
            return self._activate(up, num * pairs.num_active, activated, experts.down)

        given = experts.multiply(normed, pairs, num, activate, buffers.floats)
        add_experts(x, given, weights, num)

    def _add(
        self, matrix: Stack, read: Rows, x: Tensor, num: int, name: str, buffers: Buffers
    ) -> None:
        """Add what a sublayer gives to x, through a norm of its own if it has one."""
        if self.config.norms not in ("after", "both"):
            matrix.multiply(read, num, x, adds=True, multiplier=self.config.residual_multiplier)
            return
        added = buffers.floats("added", ROWS, self.config.hidden_size)
        matrix.multiply(read, num, added)
        put_norm(added, self.norms[name], self.config, num, out=x, adds=True)

    def write_kv(
        self, given: Tensor, rows: Pass, cache: CacheLayer, buffers: Buffers
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write keys and values of what attention is given (ROWS, any); return the queries with codes and scales."""
        read = buffers.read("read", given.shape[1])
        put_norm(given, None, self.config, rows.num_rows, to=read, readers=(self.qkv,))
        return self._place(read, rows, cache, buffers)

    def _place(
        self, normed: Rows, rows: Pass, cache: CacheLayer, buffers: Buffers
    ) -> tuple[Tensor, Tensor, Tensor]:
        config, num, shape = self.config, rows.num_rows, self._heads()
        heads, kv_heads, dim = shape["H"], shape["G"], shape["E"]
        is_int8 = cache.keys.dtype == torch.int8
        qkv = buffers.floats("qkv", ROWS, (heads + 2 * kv_heads) * dim)
        self.qkv.multiply(normed, num, qkv)
        self._norm_whole(qkv, num)
        q = buffers.floats("q", ROWS, heads, dim)
        q_codes = buffers.floats("q_codes", ROWS, heads, dim, dtype=torch.int8)
        q_scales = buffers.floats("q_scales", ROWS, heads)
        half, cos, sin = self._rotation(rows, q)
        norms = q if self.head_norms is None else self.head_norms
        order = "after" if config.qk_norm_after_rope else "before"
        place[(num, heads + 2 * kv_heads)](
            qkv, norms, config.norm_eps, cos, sin, rows.positions, rows.cache_rows, rows.slots, rows.tables,
            rows.tables.stride(0), rows.query_scales, q, q_codes, q_scales, *cache.tensors,
            **shape, HALF=half, NORM="none" if self.head_norms is None else order,
            IS_LAYER=config.norm == "layer", IS_INT8=is_int8, **LAUNCH,
        )  # fmt: skip
        return q, q_codes, q_scales

    def _attend(
        self, q: tuple[Tensor, Tensor, Tensor], rows: Pass, cache: CacheLayer, buffers: Buffers
    ) -> Rows:
        config, num, shape = self.config, rows.num_rows, self._heads()
        heads, kv_heads = shape["H"], shape["G"]
        is_int8 = cache.keys.dtype == torch.int8
        runs = rows.num_runs
        tops, totals, outs = self.states(num, runs, buffers)
        limit = config.attention_cap or 1.0
        attend[(num, kv_heads, runs)](
            *q, *cache.tensors, rows.ends if self.is_bidirectional else rows.positions,
            rows.befores if self.fills_blocks else rows.positions, rows.bases, rows.paths, rows.paths.stride(0),
            rows.slots, rows.tables, rows.tables.stride(0), rows.runs, runs,
            *cap_factors(limit), tops, totals, outs, **shape,
            PAIRS=max(16 if is_int8 else 1, triton.next_power_of_2(heads // kv_heads)),
            WINDOW=config.layer(self.index).sliding_window or 0, HAS_CAP=config.attention_cap is not None,
            IS_INT8=is_int8, **WIDE_LAUNCH,
        )  # fmt: skip
        return self._merge(tops, totals, outs, num, shape, buffers)

    def states(self, num: int, runs: int, buffers: Buffers) -> tuple[Tensor, Tensor, Tensor]:
        """Return room for the states of attention of so many rows and runs: what grows with the context."""
        heads, dim = self.config.num_heads, self.config.heads(self.index)[1]
        tops, totals = (buffers.floats(name, num, heads, runs) for name in ("tops", "totals"))
        return tops, totals, buffers.floats("outs", num, heads, runs, dim)

    def _heads(self) -> dict[str, int]:
        """Return the constants of attention."""
        kv_heads, dim = self.config.heads(self.index)
        sizes = {"H": self.config.num_heads, "G": kv_heads, "E": dim}
        return {**sizes, "WIDE": max(32, triton.next_power_of_2(dim))}

    def _merge(
        self, tops: Tensor, totals: Tensor, outs: Tensor, num: int, shape: Mapping[str, int], buffers: Buffers
    ) -> Rows:  # fmt: skip
        heads, dim = shape["H"], shape["E"]
        attended = buffers.read("attended", heads * dim)
        to_codes = self.o.reads_codes and dim % 32 == 0 and self.o.order is None
        sinks = self.norms.get("sinks")
        merge[(num, heads)](
            tops.shape[2], tops, totals, outs, tops if sinks is None else sinks.weight, attended.floats,
            *attended.coded, H=heads, E=dim, WIDE=shape["WIDE"], ROWS=ROWS, HAS_SINKS=sinks is not None,
            TO_CODES=to_codes, **LAUNCH,
        )  # fmt: skip
        if self.o.reads_codes and not to_codes:  # groups of 32 lie across heads, or elsewhere
            put_norm(attended.floats, None, self.config, num, to=attended, readers=(self.o,))
        return attended

    def _norm_whole(self, qkv: Tensor, num: int) -> None:
        """Norm queries and keys over their whole width, where that is how the family has it."""
        if self.config.qk_norm != "whole":
            return
        kv_heads, dim = self.config.heads(self.index)
        start, width = 0, qkv.shape[1]
        for name, size in (("q_norm", self.config.num_heads * dim), ("k_norm", kv_heads * dim)):
            x, weights = qkv[:, start:], self.norms[name]
            norm[(num,)](
                x, weights.weight, weights.weight, x, self.config.norm_eps, 1.0, x, x, x, x, D=size, X=width,
                HAS_ORDER=False,
                GROUPS=triton.next_power_of_2(-(-size // 32)), ROWS=ROWS, HAS_NORM=True,
                IS_LAYER=self.config.norm == "layer", HAS_BIAS=False, TO_CODES=False, TO_FLOATS=True, ADDS=False,
                **LAUNCH,
            )  # fmt: skip
            start += size

    def _rotation(self, rows: Pass, none: Tensor) -> tuple[int, Tensor, Tensor]:
        """Return half of the rotated dimensions, and the tables of the positions of a pass."""
        if self.angles is None:
            return 0, none, none
        return self.angles.half, *self.angles.upto(rows.stop)

    def _activate(self, up: Tensor, num: int, activated: Rows, reader: Stack | Matrix) -> Rows:
        """Activate [gate | up] (rows, 2 F), or up, for what reads it."""
        put_activation(
            up, num, self.config.activation, activated, is_gated=self.config.gated_mlp,
            to_codes=reader.reads_codes and reader.order is None,
        )  # fmt: skip
        if reader.order is not None:
            put_norm(activated.floats, None, self.config, num, to=activated, readers=(reader,))
        return activated


def cap_factors(limit: float) -> tuple[float, float, float]:
    """Return what `numbers.cap` is given of a limit, as csrc/kernels/rows.h rounds it."""
    exact = np.float32(limit)
    return float(np.float32(2) / exact), float(np.float32(2) * exact), float(-exact)
