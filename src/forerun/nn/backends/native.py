"""The decoder on the CPU kernels: quantized weights as they are stored, a whole pass as one native call.

It computes what `nn/decoder.py` computes, with int8 activations where weights are integers. It knows
no checkpoint format (`loader.py` hands it the stored tensors) and no drafting. The row law holds bit
for bit: a row's hidden state and logits do not depend on the other rows, on the number of threads or
on the instruction set.

R rows of the pass, M rows that need logits, D width, G kv heads, E head dim, V vocabulary, S context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import gguf
import numpy as np
import torch
from torch import Tensor

from forerun.cache.base import KVCache
from forerun.core.batch import Batch
from forerun.core.errors import CapacityError, LoadError
from forerun.kernels import native
from forerun.nn.backends.base import Progress
from forerun.nn.config import ModelConfig, weight_shapes
from forerun.nn.decoder import inverse_frequencies
from forerun.nn.model import Hidden, LayerPlan
from forerun.nn.native_cache import NativeCache
from forerun.nn.packed import PackedFile
from forerun.quant.rtn import Scheme, quantize_weight, requantize

if TYPE_CHECKING:
    from forerun.formats.weights import StoredTensor

PRIORITY = 1

MAX_ROWS = 64
"""Rows one native call computes; a larger pass is cut, so that its rows stay in the second-level cache."""

_UNIT = 16


def unsupported(config: ModelConfig, device: torch.device) -> str | None:
    """Why this model cannot run on the native kernels here; None if it can."""
    if device.type != "cpu":
        return "the native kernels are for the CPU"
    widths = (config.hidden_size, config.intermediate_size, config.head_dim)
    if any(width % _UNIT for width in widths):
        return f"hidden, MLP and head sizes must be multiples of {_UNIT}, but are {widths}"
    return native.reason()


class NativeDecoder:
    """A model over packed weights. Implements `nn.model.Model`; build it with `load`."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_threads: int | None = None,
        isa: str = "auto",
    ) -> None:
        from forerun import _native

        self.config = config
        self.num_threads = torch.get_num_threads() if num_threads is None else num_threads
        self._native = _native.Decoder(_settings(config), isa, self.num_threads)
        # By name: a norm's arrays; nothing for a matrix, which lies in the kernels' memory.
        self._weights: dict[str, list[np.ndarray]] = {}
        self._whole = LayerPlan.of(config.num_layers)
        if config.rope is not None:
            frequencies = inverse_frequencies(config.rope).numpy()
            self._native.set_rope(frequencies, config.rope.attention_factor)

    @property
    def isa(self) -> str:
        """The instruction set whose kernels run."""
        return self._native.isa

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Pack one weight, by its canonical name. Raises LoadError for a shape or a type that has no kernel."""
        offset = None if bias is None else _floats(bias)
        layer, short = _place(name)
        try:
            if len(stored.shape) == 1:
                self.add_norm(name, _floats(stored), offset)
            else:
                num_out, num_in = stored.shape
                rows = np.ascontiguousarray(stored.data)
                type_id = int(gguf.GGMLQuantizationType[stored.format.name.upper()])
                self._native.set_linear(layer, short, type_id, num_out, num_in, rows, offset)
                self._weights[name] = []
        except ValueError as error:
            raise LoadError(f"'{name}' ({stored.format.name}) cannot be packed: {error}") from error

    def add_norm(self, name: str, values: np.ndarray, offset: np.ndarray | None = None) -> None:
        """Set a norm's fp32 values, and for a layer norm what is added. Raises ValueError."""
        is_layer = self.config.norm == "layer"
        self._native.set_norm(*_place(name), values, offset, self.config.norm_eps, is_layer)
        self._weights[name] = [values] if offset is None else [values, offset]

    def add_blank(
        self, name: str, kind: int, shape: Sequence[int], has_bias: bool
    ) -> list[np.ndarray]:
        """Make room for a packed matrix; the bytes to fill, its bias's last. Raises ValueError."""
        num_out, num_in = shape
        self._native.add_blank(*_place(name), kind, num_out, num_in, has_bias)
        self._weights[name] = []
        return [array for array in self._native.packed(*_place(name))[3:] if len(array)]

    def packed(self) -> Iterator[tuple[str, int | None, tuple[int, ...], list[np.ndarray]]]:
        """All weights as they lie in memory: name, kind (None for a norm), shape, bytes, its bias's last."""
        for name, values in self._weights.items():
            if values:
                yield name, None, values[0].shape, [array.view(np.uint8) for array in values]
            else:
                kind, *shape, tiles, bias = self._native.packed(*_place(name))
                yield name, kind, tuple(shape), [tiles, bias] if len(bias) else [tiles]

    def check(self) -> None:
        """Raise ValueError, naming it, for a weight whose shape does not fit the others."""
        self._native.check()

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        taps: tuple[int, ...] = (),
        plan: LayerPlan | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        Without a `plan` every sublayer is run.
        Raises CapacityError if a row does not fit the cache or the model's context.
        """
        assert isinstance(cache, NativeCache)
        width = self.config.hidden_size
        layers = sorted(set(taps))
        last = torch.empty(batch.num_rows, width)
        tapped = torch.empty(len(layers), batch.num_rows, width)
        start = 0
        for part in [batch] if batch.num_rows <= MAX_ROWS else batch.split(MAX_ROWS):
            stop = start + part.num_rows
            rows = tapped if part is batch else torch.empty(len(layers), part.num_rows, width)
            self._run(part, cache, last[start:stop], layers, rows, plan or self._whole)
            if part is not batch:
                tapped[:, start:stop] = rows
            start = stop
        return Hidden(last, tuple(tapped[layers.index(layer)] for layer in taps))

    def _run(
        self,
        batch: Batch,
        cache: NativeCache,
        last: Tensor,
        layers: list[int],
        tapped: Tensor,
        plan: LayerPlan,
    ) -> None:
        assert all(s.base == cache.length(s.slot) for s in batch.segments)
        outputs = last.numpy(), layers, tapped.numpy()
        try:
            self._native.forward(cache.native, batch.segments, *outputs, plan.sublayers)
        except IndexError as error:
            raise CapacityError(f"{error}: allow a longer context or stop earlier") from error

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (M, V), fp32, of hidden states (M, D)."""
        logits = torch.empty(len(hidden), self.config.vocab_size)
        self._native.head(_rows(hidden), logits.numpy())
        return logits

    def argmax(self, hidden: Tensor) -> Tensor:
        """The likeliest token of each row, the lowest id of equal ones, (M,) int64: `head(hidden).argmax(-1)`.

        Logits are written only for rows with NaN, where the kernel says -1.
        """
        ids = torch.empty(len(hidden), dtype=torch.int64)
        self._native.argmax(_rows(hidden), ids.numpy())
        sick = ids < 0
        if sick.any():
            ids[sick] = self.head(hidden[sick]).argmax(dim=-1)
        return ids

    def new_cache(
        self, num_slots: int, max_len: int, dtype: torch.dtype | None = None
    ) -> NativeCache:
        """A cache that fits this model; fp16 unless `dtype` is torch.float32."""
        return NativeCache(self.config, num_slots, max_len, dtype)

    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._native.nbytes()


def load(
    config: ModelConfig,
    weights: Mapping[str, StoredTensor] | Iterable[tuple[str, StoredTensor]],
    *,
    device: torch.device | None = None,
    num_threads: int | None = None,
    isa: str = "auto",
    quant: Scheme = "none",
    head_bits: int | None = None,
    packed: PackedFile | None = None,
    progress: Progress | None = None,
) -> NativeDecoder:
    """A native decoder of stored weights with the names of `nn.config.weight_shapes` (biases follow their weight).

    `quant` rounds what is stored in more bits. `head_bits` 4 or 8 rounds the head to that many: another,
    faster model, not the stored one. A head tied to the embedding becomes a copy of its own, so tokens
    are still looked up as stored. `packed` is read instead of the weights if it serves, else written.
    `num_threads` is by default torch's. Raises LoadError if a weight is missing or has no kernel.
    """
    decoder = NativeDecoder(config, num_threads=num_threads, isa=isa)
    missing = dict.fromkeys(weight_shapes(config))
    total = len(missing)
    if packed is not None and packed.load(decoder):
        if progress is not None:
            progress(total, total)
        return decoder
    packable = _with_biases(weights.items() if isinstance(weights, Mapping) else weights)
    if head_bits is not None:
        packable = _with_rounded_head(packable, head_bits, config.tied_head)
    for name, stored, bias in packable:
        decoder.add(name, quantize_weight(name, stored, quant), bias)
        stored.release()
        missing.pop(name, None)
        if progress is not None:
            progress(total - len(missing), total)
    if missing:
        raise LoadError(f"weights are missing: {', '.join(missing)}")
    try:
        decoder.check()
    except ValueError as error:
        raise LoadError(str(error)) from error
    if packed is not None:
        packed.save(decoder)
    return decoder


def _with_biases(
    items: Iterable[tuple[str, StoredTensor]],
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    name, weight = "", None
    bias: StoredTensor | None = None
    for key, stored in items:
        if key == f"{name}.bias":
            bias = stored
            continue
        if weight is not None:
            yield name, weight, bias
        name, weight, bias = key, stored, None
    if weight is not None:
        yield name, weight, bias


def _with_rounded_head(
    items: Iterable[tuple[str, StoredTensor, StoredTensor | None]], bits: int, is_tied: bool
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    source = "embed" if is_tied else "head"
    for name, stored, bias in items:
        if name == source:
            yield "head", requantize(stored, bits), bias
            stored.release()
        if name != source or is_tied:
            yield name, stored, bias


def _place(name: str) -> tuple[int, str]:
    """The layer (-1 outside of layers) and the name within it."""
    prefix, _, short = name.rpartition(".")
    return int(prefix.removeprefix("layers.")) if prefix else -1, short


def _settings(config: ModelConfig) -> dict[str, int | float | bool | str]:
    offset = config.learned_position_offset
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position": config.max_position,
        "activation": config.activation,
        "is_gated": config.gated_mlp,
        "sliding_window": config.sliding_window or 0,
        "position_offset": -1 if offset is None else offset,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "attention_scale": config.scale,
        "logits_divisor": config.logits_divisor,
    }


def _rows(hidden: Tensor) -> np.ndarray:
    return hidden.to(torch.float32).contiguous().numpy()


def _floats(stored: StoredTensor) -> np.ndarray:
    return stored.dequantize().numpy()
