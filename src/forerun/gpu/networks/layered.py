"""Networks with decoder layers of their own, on a device: what EAGLE and block drafters share.

As in csrc/drafters/layered_network.cpp, keys and values of rows that have the target's states are kept, in slots; those
of guessed rows lie behind them until the next draft.

R rows, D width, T layers of the target that are read, S width of their states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.layers import put_norm
from forerun.gpu.matrices import ROWS
from forerun.gpu.networks.base import GpuNetwork
from forerun.gpu.passes import plan
from forerun.model.config import LayerConfig, ModelConfig
from forerun.weights.codes import FORMATS, Bytes
from forerun.weights.stored import StoredTensor, stored_floats

_MAPS = ("fc", "head", "markov")
"""How matrices begin that are not the layers'."""


class GpuLayeredNetwork(GpuNetwork):
    """Layers whose keys and values are made of g = fc [states], and slots for sequences.

    Row t of a slot stands for the token behind the target's states at t. `fc` reads them as they are, or each normed
    by `fc_norm.i`, or all by `fc_norm`; k and v of all layers read rms(g), by `hidden_norm`.
    """

    layer_names: Mapping[str, str] = MappingProxyType({})
    """What a decoder calls weights of a layer that have other names there."""
    own_norms: tuple[str, ...] = ("fc_norm", "hidden_norm")
    """How vectors begin that are not the layers'."""

    def __init__(
        self, target: GpuDecoder, layers: GpuDecoder, max_depth: int, num_slots: int, max_len: int, num_guessed: int,
        *, sees_depth_alone: bool = False,
    ) -> None:  # fmt: skip
        """Make room for slots of `max_len` rows, and `num_guessed` guesses. Raises CapacityError."""
        super().__init__(target, max_depth, sees_depth_alone=sees_depth_alone)
        self.layers, self.max_len = layers, max_len
        self.cache = layers.new_cache(num_slots, max_len + num_guessed)
        self.slots: Sequence[int] = ()
        """By sequence of the draft."""
        self.num_steps: Sequence[int] = ()
        """The same: at most."""
        self.last_tokens: dict[int, int] = {}
        """By slot: the token after its last row."""

    def set(self, name: str, format: str, num_in: int, rows: Bytes) -> None:
        """Take a matrix. Raises LoadError where the device has no memory for it."""
        if name.partition(".")[0] in _MAPS:
            super().set(name, format, num_in, rows)
        else:
            self._add(name, StoredTensor(name, (len(rows), num_in), FORMATS[format], rows))

    def set_norm(self, name: str, weight: Floats, bias: Floats | None, eps: float) -> None:
        """Take a vector."""
        if name.startswith(self.own_norms):
            super().set_norm(name, weight, bias, eps)
        else:
            self._add(name, stored_floats(name, weight))

    def _add(self, name: str, stored: StoredTensor) -> None:
        """Give the layers a weight by the name that it has in a decoder."""
        layer, _, short = name.rpartition(".")
        short = self.layer_names.get(short, short)
        outside = {"emb.0": "embed", "norm": "norm"}
        with self.filling():
            self.layers.add(outside.get(name, f"layers.{layer or 0}.{short}"), stored, None)

    def check(self) -> None:
        """Put the layers together, and find the head."""
        self.layers.finish()
        self.check_heads(self.layers.config.hidden_size)

    def nbytes(self) -> int:
        """Return the bytes of the weights, and of rows."""
        rows = self.layers.scratch_nbytes(self.cache, ROWS, 0, 0)
        return super().nbytes() + self.layers.nbytes() + rows

    def clear(self, slot: int) -> None:
        """Forget the rows of a slot."""
        self.cache.truncate(slot, 0)

    def reuse(self, slot: int, source: int, rows: int) -> None:
        """Let a slot begin with the first rows of a slot, which may be the same."""
        self.cache.begin_with(slot, source, rows)

    def prefill(self, slot: int, tokens: Sequence[int], states: Floats) -> None:
        """Add rows to a slot: the target's states (R, T S), and the tokens after them. Raises CapacityError."""
        base, num = self.cache.length(slot), len(tokens)
        if base + num > self.max_len:
            raise CapacityError(
                f"{base + num} rows do not fit a cache of {self.max_len}: allow a longer context or stop earlier"
            )
        layers, batch, first = self.layers, Batch((Segment(slot, base, (0,) * num),)), 0
        with layers.current():
            for part in self.cache.parts(batch, ROWS):
                here = slice(first, first + part.num_rows)
                g = self._fuse(layers.to_device(states[here]))
                given = self.read_by_keys(g, np.array(tokens[here], np.int64))
                rows = plan(part, self.cache, layers.config, self.device)
                for layer, kept in zip(layers.layers, self.cache.layers, strict=True):
                    layer.write_kv(given, rows, kept, self.buffers)
                self.keep_last(slot, g[-1])
                first = here.stop
        self.cache.keep(slot, range(num))
        self.last_tokens[slot] = tokens[-1]

    def _fuse(self, states: Tensor) -> Tensor:
        """Return g (R, D) of states (R, T S), in a buffer."""
        config, norms, fc, num = self.layers.config, self.norms, self.matrices["fc"], len(states)
        read = self.buffers.floats("fused", *states.shape)
        read[:] = states  # norms change it, not what the target gave
        for name in (name for name in norms if name.startswith("fc_norm.")):
            size = len(norms[name].weight)
            start = size * int(name.rpartition(".")[2])
            part = read[:, start : start + size]
            put_norm(part, norms[name], config, num, out=part)
        if (whole := norms.get("fc_norm")) is not None:
            put_norm(read, whole, config, num, out=read)
        g = self.buffers.floats("g", ROWS, config.hidden_size)
        fc.multiply(self.read("states", read, fc), num, g)
        return g[:num]

    def read_by_keys(self, g: Tensor, tokens: Ids) -> Tensor:
        """Return what k and v of all layers read (ROWS, any) of rows of g (R, D) and the tokens after them (R,)."""
        read = self.buffers.floats("read", ROWS, g.shape[1])
        put_norm(g, self.norms["hidden_norm"], self.layers.config, len(g), out=read)
        return read

    def keep_last(self, slot: int, g: Tensor) -> None:
        """Note the g (D,) of the last row of a slot."""

    def begin_draft(
        self, num_steps: Sequence[int], rows: Sequence[int] | None, states: Floats | None
    ) -> _native.ComputedNetwork:
        """Begin a draft of sequences, of at most so many steps, in slots `rows`; None: 0, 1, ..."""
        self.slots = range(len(num_steps)) if rows is None else rows
        self.num_steps = num_steps
        return self.native


def decoder_shape(config: Any, rows: int, windows: Sequence[int] = (0,)) -> ModelConfig:
    """Return the shape of layers, of which each sees `windows` rows before a block, 0: all; sizes have Llama's names.

    There are so many rows at most.
    """
    kinds = (LayerConfig(config.rope, window or None) for window in windows)
    return ModelConfig(
        family="llama",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=len(windows),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position=rows,
        norm_eps=config.rms_norm_eps,
        qk_norm="head" if any(name.endswith("q_norm") for name in config.shapes()) else None,
        layers=(*kinds,),
    )
