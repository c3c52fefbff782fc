"""Decoder layers behind a target on its device: what EAGLE and block drafters share (csrc/drafters/layered_network.cpp).

Keys and values of rows that have the target's states are kept, in slots; those of guessed rows lie behind them until
the next draft.

R rows, D width, T aux layers of the target, S width of their states, V' tokens of the head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.layers import Buffers, put_norm
from forerun.gpu.matrices import ROWS, Stack
from forerun.gpu.passes import plan
from forerun.model.config import ModelConfig
from forerun.weights.stored import StoredTensor

Embed = Callable[[Ids], Floats]
"""Gives the embeddings (R, D) of tokens (R,)."""


class LayeredNetwork(GpuDecoder):
    """Layers whose keys and values are made of g = fc [states], and of tokens' embeddings where they read both.

    Row t of a slot stands for the token behind the target's states at t. Weights are those of a decoder, whose
    vocabulary is the head's, and `fc`, `hidden_norm`, `fc_norm.i` and `fc_norm` besides.
    """

    maps: tuple[str, ...] = ("fc",)
    """The names of matrices that no decoder has."""

    def __init__(
        self, config: ModelConfig, device: torch.device | str, num_slots: int, max_len: int, num_guessed: int
    ) -> None:  # fmt: skip
        """Make room for slots of `max_len` rows and `num_guessed` guesses behind them. Raises CapacityError."""
        super().__init__(config, device)
        self.max_len = max_len
        self.cache = self.new_cache(num_slots, max_len + num_guessed)

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Take one weight, by its name. Raises LoadError for a format that is not read."""
        if name in self.maps:
            self._stacks[name] = Stack.pack([(stored, bias)], self.device)
        else:
            super().add(name, stored, bias)

    def clear(self, slot: int) -> None:
        """Forget the rows of a slot."""
        self.cache.truncate(slot, 0)

    def reuse(self, slot: int, source: int, rows: int) -> None:
        """Let a slot begin with the first rows of a slot, which may be the same."""
        self.cache.begin_with(slot, source, rows)

    def prefill(self, slot: int, embedded: Floats | None, states: Floats) -> Floats:
        """Add rows to a slot, of the target's states (R, T S) and embeddings (R, D); return the last one's g (D,).

        Raises CapacityError if they do not fit.
        """
        base, num = self.cache.length(slot), len(states)
        batch = Batch((Segment(slot, base, (0,) * num),))
        first, last = 0, np.empty(0, np.float32)
        with self._current():
            for part in self.cache.parts(batch, ROWS):
                here = slice(first, first + part.num_rows)
                g = self._fuse(self._to_device(states[here]))
                e = None if embedded is None else self._to_device(embedded[here])
                given = self._key_input(g, e, self._buffers)
                rows = plan(part, self.cache, self.config, self.device)
                for layer, kept in zip(self.layers, self.cache.layers, strict=True):
                    layer.write_kv(given, rows, kept, self._buffers)
                first, last = here.stop, g[part.num_rows - 1].cpu().numpy()
        self.cache.keep(slot, range(num))
        return last

    def _fuse(self, states: Tensor) -> Tensor:
        """Return g (R, D) of states (R, T S)."""
        num, norms = len(states), self._norms
        read = self._buffers.read("states", states.shape[1])
        read.floats[:num] = states
        each = [name for name in norms if name.startswith("fc_norm.")]
        for name in each:
            size = len(norms[name].weight)
            part = read.floats[:, int(name.rpartition(".")[2]) * size :][:, :size]
            put_norm(part, norms[name], self.config, num, out=part)
        fc = self._stacks["fc"]
        put_norm(read.floats, norms.get("fc_norm"), self.config, num, to=read, readers=(fc,))
        g = self._buffers.floats("g", ROWS, self.config.hidden_size)
        fc.multiply(read, num, g)
        return g[:num]

    @abstractmethod
    def _key_input(self, g: Tensor, embedded: Tensor | None, buffers: Buffers) -> Tensor:
        """Return what k and v of all layers read (ROWS, any) of rows of g (R, D) and their tokens (R, D)."""


class EagleNetwork(LayeredNetwork):
    """EAGLE-3 (csrc/drafters/eagle_network.cpp): a layer whose q, k and v read [rms(e(token)); rms(g)], from g on.

    `starts_from_norm`: from rms(g) on.
    """

    starts_from_norm = False

    @property
    def input_width(self) -> int:
        """The width of the rows that a pass is given: [e(token); g]."""
        return 2 * self.config.hidden_size

    def _key_input(self, g: Tensor, embedded: Tensor | None, buffers: Buffers) -> Tensor:
        assert embedded is not None
        return self._normed(torch.cat([embedded, g], 1), buffers)

    def _normed(self, given: Tensor, buffers: Buffers) -> Tensor:
        read, width = buffers.floats("attention", ROWS, self.input_width), self.config.hidden_size
        for start, name in ((0, "input_norm"), (width, "hidden_norm")):
            here = slice(start, start + width)
            put_norm(given[:, here], self._norms[name], self.config, len(given), out=read[:, here])
        return read

    def _begin(self, given: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        read, width = self._normed(given, buffers), self.config.hidden_size
        return super()._begin(
            (read if self.starts_from_norm else given)[: len(given), width:], buffers
        )[0], read
