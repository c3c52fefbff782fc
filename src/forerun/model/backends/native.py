"""The decoder on the CPU kernels: quantized weights as they are stored, a whole pass as one native call.

It computes what `forerun.lab.torch.decoder` computes, with int8 activations where weights are integers. It knows
no checkpoint format (`loader.py` hands it the stored tensors) and no drafting. The row law holds bit
for bit: a row's hidden state and logits do not depend on the other rows, on the number of threads or
on the instruction set.

R rows of the pass, M rows that need logits, D width, G kv heads, E head dim, V vocabulary, S context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import CapacityError, LoadError
from forerun.core.types import TopK
from forerun.model.backends.base import BlankWeight
from forerun.model.cache.base import KVCache
from forerun.model.cache.native import NativeCache
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig
from forerun.model.kernels import native
from forerun.model.model import HeadPart, Hidden, Model
from forerun.model.packing import ActOrder, fill, fill_blank
from forerun.model.shapes import weight_shapes
from forerun.system import device
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from forerun import _native
    from forerun.weights.codes import Bytes, Codes
    from forerun.weights.stored import StoredTensor

MAX_ROWS = 64
"""Rows one native call computes; a larger pass is cut, so that its rows stay in the second-level cache."""

MAX_TAPS = 16
"""Rows that a short convolution may see."""

_UNIT = 16


def unsupported(config: ModelConfig) -> str | None:
    """Return why this model cannot run on the native kernels here; None if it can."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    sizes_by_layer = {
        size for each in layers for size in (each.intermediate_size, each.head_dim) if size
    }
    if config.latent is not None:
        latent = config.latent
        sizes_by_layer |= {latent.rank, latent.rope_dim, latent.query_dim, latent.value_dim}
        sizes_by_layer |= {latent.query_rank or _UNIT}
    sizes_by_layer |= {
        each.experts.intermediate_size for each in layers if each.experts is not None
    }
    widths = (
        config.hidden_size,
        config.intermediate_size,
        config.head_dim,
        *sorted(sizes_by_layer),
    )
    if any(width % _UNIT for width in widths):
        return f"hidden, MLP, expert and head sizes must be multiples of {_UNIT}, but are {widths}"
    if (config.per_layer_width or 0) % (2 * _UNIT):
        return f"per-layer embeddings must have a multiple of {2 * _UNIT} numbers, not {config.per_layer_width}"
    if config.streams is not None and config.streams.laurel_rank % (2 * _UNIT):
        return f"the rank of LAuReL must be a multiple of {2 * _UNIT}, not {config.streams.laurel_rank}"
    kinds = {each.recurrent for each in layers if each.recurrent is not None}
    heads = {size for kind in kinds for size in (kind.key_dim, kind.value_dim)}
    if any(size % _UNIT for size in heads):
        sizes = sorted(heads)
        return f"the key and value sizes of recurrent layers must be multiples of {_UNIT}, but are {sizes}"
    if any(kind.kernel > MAX_TAPS for kind in kinds):
        return f"convolutions of recurrent layers may have at most {MAX_TAPS} taps"
    problem = native.reason()
    return problem and f"the native kernels are {problem}; {native.REMEDY}"


def absent(device: str) -> str | None:
    """Return None: there is a CPU."""
    return None


class NativeDecoder:
    """A model over packed weights. Implements `model.model.Model`; build it with `load`."""

    has_others = False
    """Whether other processes compute its passes with it."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        runtime: _native.Runtime | None = None,
        num_threads: int | None = None,
        isa: str = "auto",
    ) -> None:
        from forerun import _native

        if runtime is None:
            isa = native.named_isa() if isa == "auto" else isa
            runtime = _native.Runtime(isa, num_threads or device.num_cores())
            if isa == "auto":
                native.note_choice(runtime.isa)
        self.config = config
        self.shard = config
        """The part of the model in this process: all of it, but for one of several processes."""
        self.runtime = runtime
        """Threads and scratch memory; models that share one compute in turn."""
        self._native = _native.Decoder(runtime, config, weight_shapes(config))
        self._names: dict[str, None] = {}
        self._act_order = ActOrder(config)
        for i in range(config.num_layers):
            if config.layer(i).has_mixer and config.layer(i).recurrent is None:
                self._set_attention(i)

    def _set_attention(self, index: int) -> None:
        layer = self.config.layer(index)
        frequencies, factor = np.empty(0, np.float32), 1.0
        if layer.rope is not None:
            frequencies, factor = (layer.rope.inverse_frequencies(), layer.rope.attention_factor)
        self._native.set_attention(index, layer.sliding_window or 0, frequencies, factor)

    @property
    def native(self) -> _native.Decoder:
        """What computes; networks that draft read its embedding and its head."""
        return self._native

    @property
    def isa(self) -> str:
        """The instruction set whose kernels run."""
        return self.runtime.isa

    @property
    def num_threads(self) -> int:
        """Threads that the kernels use, the caller's included."""
        return self.runtime.num_threads

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Pack one weight, by its canonical name. Raises LoadError for a shape or a format that has no kernel."""
        offset = None if bias is None else bias.dequantize()
        stored = stored.unpacked()
        codes = None if stored.read is None else stored.codes()
        if not self._act_order.take(name, stored.format, codes):
            stored, codes = stored.in_order(), None
        form = stored.format.name
        try:
            if len(stored.shape) == 1:
                self._native.set_norm(name, stored.dequantize(), offset)
            elif codes is not None:
                self._add_codes(name, form, codes, offset)
            else:
                rows = np.ascontiguousarray(stored.data)
                self._native.set(name, form, stored.shape[1], rows, offset)
        except ValueError as error:
            raise LoadError(f"'{name}' ({form}) cannot be packed: {error}") from error
        self._names[name] = None

    def _add_codes(self, name: str, form: str, codes: Codes, offset: np.ndarray | None) -> None:
        signed, scales = np.ascontiguousarray(codes.codes).view(np.int8), codes.scales
        if codes.flat is None:
            mins = codes.mins if codes.zeros is None else -codes.zeros
            self._native.set_codes(name, form, signed, scales, mins, offset, codes.order)
            return
        flat = codes.flat
        self._native.set_flat(
            name,
            form,
            signed,
            np.ascontiguousarray(scales[:, 0]),
            flat.inverse,
            np.ascontiguousarray(flat.pieces),
            flat.limit,
            flat.uses_hadamard,
            offset,
        )

    def add_blank(
        self,
        name: str,
        form: str | None,
        shape: Sequence[int],
        has_bias: bool,
        is_apart: bool = False,
    ) -> list[np.ndarray]:
        """Make room for a packed weight, a norm if `form` is None; return the bytes to fill, its bias's last.

        `is_apart`: in a mapping of its own, which is gone with it. Raises ValueError.
        """
        if form is None:
            zeros = np.zeros(shape, np.float32)
            self._native.set_norm(name, zeros, zeros if has_bias else None)
        else:
            num_out, num_in = shape
            self._native.set_blank(name, form, num_out, num_in, has_bias, is_apart)
        self._names[name] = None
        return self._packed(name)[-1]

    def packed(self) -> Iterator[tuple[str, str | None, tuple[int, ...], list[Bytes]]]:
        """Return all weights as they lie in memory: name, format (None for a norm), shape, bytes, its bias's last."""
        return map(self._packed, self._names)

    def _packed(self, name: str) -> tuple[str, str | None, tuple[int, ...], list[Bytes]]:
        form, shape, data, bias = self._native.packed(name)
        return name, form, shape, [data, bias] if len(bias) else [data]

    def check(self) -> None:
        """Raise ValueError, naming it, for a weight whose shape does not fit the others."""
        self._native.check()

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        aux_layers: tuple[int, ...] = (),
        inputs: Floats | None = None,
    ) -> Hidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        `inputs` (R, D) takes the place of `embed(tokens)`.
        Raises CapacityError if a row does not fit the cache or the model's context.
        """
        assert isinstance(cache, NativeCache)
        assert all(s.base == cache.length(s.slot) for s in batch.segments)
        borrows = self.config.borrows_kv  # so it writes no rows
        parts = batch.split(MAX_ROWS) if borrows else cache.parts(batch, MAX_ROWS)
        width, layers = self.config.hidden_size, sorted(set(aux_layers))
        num_rows = batch.num_rows
        last = np.empty((num_rows, width), np.float32)
        aux = np.empty((len(layers), num_rows, width), np.float32)
        given = None if inputs is None else _rows(inputs)
        start = 0
        for part in parts:
            here = slice(start, start + part.num_rows)
            is_whole = here.stop == num_rows and not start
            rows = aux if is_whole else np.empty_like(aux[:, here])
            x = None if given is None else given[here]
            if self.has_others:
                x = self._announce(cache, part.segments, x)
            try:
                self._native.forward(cache.native, part.segments, x, last[here], layers, rows)
            except IndexError as error:
                raise CapacityError(f"{error}: allow a longer context or stop earlier") from error
            if not is_whole:
                aux[:, here] = rows
            start = here.stop
        return Hidden(last, tuple(aux[layers.index(layer)] for layer in aux_layers))

    def _announce(
        self, cache: NativeCache, segments: Sequence[Segment], inputs: Floats | None
    ) -> Floats:
        """Tell the others of a pass of at most MAX_ROWS rows, and return what goes into it (R, D)."""
        raise NotImplementedError

    def embed(self, ids: Ids) -> Floats:
        """Embed tokens (R,) as (R, D) fp32, positions left out."""
        rows = np.empty((len(ids), self.config.hidden_size), np.float32)
        self._native.embed(_ids(ids), rows)
        return rows

    def head(self, hidden: Floats) -> Floats:
        """Return the logits (M, V), fp32, of hidden states (M, D)."""
        logits = np.empty((len(hidden), self.config.vocab_size), np.float32)
        self._native.head(_rows(hidden), logits)
        return logits

    def topk(
        self, hidden: Floats, k: int, *, log_normaliser: bool = False, logits: Floats | None = None
    ) -> TopK:
        """Return the k likeliest tokens of each row; see `model.model.Model`. Writes no logits unless asked for."""
        shape = len(hidden), k
        ids, values = np.empty(shape, np.int64), np.empty(shape, np.float32)
        norm = np.empty(len(hidden), np.float32) if log_normaliser else None
        self._native.topk(_rows(hidden), ids, values, norm, logits)
        return TopK(ids, values, norm)

    def head_rows(self, hidden: Floats, ids: Ids) -> Floats:
        """Return the logits (M, n) of some tokens (n,): columns of `head(hidden)`. Ascending ids are the fastest."""
        logits = np.empty((len(hidden), len(ids)), np.float32)
        self._native.head_rows(_rows(hidden), _ids(ids), logits)
        return logits

    def head_weights(self, ids: Ids | None) -> Floats:
        """Return the head's rows (n, D) of some tokens (n,), None for all; a soft cap is left out."""
        ids = np.arange(self.config.vocab_size) if ids is None else ids
        rows = np.empty((len(ids), self.config.hidden_size), np.float32)
        self._native.head_part(_ids(ids)).unpack(rows)
        rows /= np.float32(self.config.logits_divisor)
        return rows

    def head_part(self, ids: Ids) -> HeadPart:
        """Return a copy of the rows of some tokens (n,). Raises ValueError for none, or one that there is not."""
        part = self._native.head_part(_ids(ids))

        def logits(hidden: Floats) -> Floats:
            rows = np.empty((len(hidden), len(ids)), np.float32)
            part.head(_rows(hidden), rows)
            return rows

        return HeadPart(logits, part.nbytes())

    def new_cache(
        self,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
    ) -> NativeCache:
        """Return a cache that fits this model; `auto` is fp16."""
        return NativeCache(
            self.shard,
            num_slots,
            max_len,
            kv,
            num_blocks,
            num_checkpoints,
            draft_rows,
            self.runtime,
        )

    def nbytes(self) -> int:
        """Return the bytes of the packed weights."""
        return self._native.nbytes()

    def phases(self, batch: Batch, cache: KVCache) -> list[int]:
        """Return the pieces of each phase of a pass without computing it; weights are not needed.

        Phases of 0 pieces are passed over, at the end of all others threads wait for each other.
        """
        assert isinstance(cache, NativeCache)
        for segment in batch.segments:
            cache.reserve(segment.slot, segment.stop)
        return self._native.phases(cache.native, batch.segments)

    def scratch_nbytes(self, cache: KVCache, num_rows: int, num_nodes: int, head_rows: int) -> int:
        """Return the bytes of the kernels' scratch memory, from what lays it out."""
        assert isinstance(cache, NativeCache)
        rows = min(num_rows, MAX_ROWS)
        return self._native.scratch_nbytes(cache.native, rows, num_nodes, head_rows)

    def attention_nbytes(self, cache: KVCache) -> int:
        """Return how much of the scratch memory attention takes at most, in the full context of a cache."""
        assert isinstance(cache, NativeCache)
        return self._native.attention_nbytes(cache.native)


class BlankDecoder(NativeDecoder):
    """A decoder without weights, for planning: its logits are zeros."""

    def head(self, hidden: Floats) -> Floats:
        """Return zeros (M, V)."""
        return np.zeros((len(hidden), self.config.vocab_size), np.float32)

    def head_rows(self, hidden: Floats, ids: Ids) -> Floats:
        """Return zeros (M, n)."""
        return np.zeros((len(hidden), len(ids)), np.float32)


def load(
    config: ModelConfig,
    weights: Mapping[str, StoredTensor] | Iterable[tuple[str, StoredTensor]],
    *,
    device: str = "cpu",
    shares_with: Model | None = None,
    num_threads: int | None = None,
    isa: str = "auto",
    quant: Scheme = "none",
    head_bits: int | None = None,
) -> NativeDecoder:
    """Return a native decoder of stored weights, by the names of `weight_shapes`; a bias follows its weight.

    `quant` rounds what is stored in more bits. `head_bits` 4 or 8 rounds the head to that many: another,
    faster model, not the stored one. A head tied to the embedding becomes a copy of its own, so tokens
    are still looked up as stored.
    The model that it `shares_with` lends its threads and scratch memory; else `num_threads` is one a usable core.
    Raises LoadError if a weight is missing or has no kernel.
    """
    runtime = shares_with.runtime if isinstance(shares_with, NativeDecoder) else None
    decoder = NativeDecoder(config, runtime=runtime, num_threads=num_threads, isa=isa)
    given = weights.items() if isinstance(weights, Mapping) else weights
    fill(decoder, given, quant=quant, head_bits=head_bits)
    return decoder


def blank(
    config: ModelConfig,
    weights: Iterable[BlankWeight],
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    shares_with: Model | None = None,
    head_bits: int | None = None,
) -> NativeDecoder:
    """Return a decoder whose weights are mapped but not written: `nbytes` is that of the loaded one."""
    runtime = shares_with.runtime if isinstance(shares_with, NativeDecoder) else None
    decoder = BlankDecoder(config, runtime=runtime, num_threads=num_threads)
    fill_blank(decoder, weights, head_bits)
    return decoder


_rows = partial(np.ascontiguousarray, dtype=np.float32)
_ids = partial(np.ascontiguousarray, dtype=np.int64)
