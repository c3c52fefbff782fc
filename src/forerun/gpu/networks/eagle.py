"""EAGLE-3 on a device: csrc/drafters/eagle_network.cpp.

R rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.host import DeviceHidden, to_host
from forerun.gpu.layers import Buffers, Norm, put_norm
from forerun.gpu.matrices import ROWS
from forerun.gpu.networks.base import MAX_STEPS, Steps
from forerun.gpu.networks.layered import GpuLayeredNetwork, decoder_shape
from forerun.model.config import ModelConfig


class GpuEagleLayer(GpuDecoder):
    """A layer whose q, k and v read [rms(e(token)); rms(g)], by the norms `input_norm` and `hidden_norm`.

    A pass is given [e(token); g]; the residual starts from g, or from rms(g).
    """

    def __init__(
        self, config: ModelConfig, device: torch.device, norms: Mapping[str, Norm], *, starts_from_norm: bool
    ) -> None:  # fmt: skip
        super().__init__(config, device)
        self._halves = norms
        self._starts_from_norm = starts_from_norm

    @property
    def input_width(self) -> int:
        """The width of the rows that a pass is given."""
        return 2 * self.config.hidden_size

    def _begin(self, given: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        read = self.normed(given, buffers)
        state = (read if self._starts_from_norm else given)[: len(given), self.config.hidden_size :]
        return super()._begin(state, buffers)[0], read

    def normed(self, given: Tensor, buffers: Buffers) -> Tensor:
        """Norm both halves of rows (R, 2 D): (ROWS, 2 D), in a buffer."""
        read, width = buffers.floats("attention", ROWS, self.input_width), self.config.hidden_size
        for start, name in ((0, "input_norm"), (width, "hidden_norm")):
            here = slice(start, start + width)
            weights = self._halves[name]
            put_norm(given[:, here], weights, self.config, len(given), out=read[:, here])
        return read


class GpuEagle(GpuLayeredNetwork):
    """One layer, with embeddings of its own or the target's.

    A guessed row's g is the state of the row above it, as it is or normed (`norm_output`).
    """

    own_norms = (*GpuLayeredNetwork.own_norms, "input_norm")
    layers: GpuEagleLayer

    def __init__(self, target: GpuDecoder, config: Any, num_slots: int, max_len: int) -> None:
        shape = decoder_shape(config, max_len + MAX_STEPS)
        norms: dict[str, Norm] = {}
        from_norm = config.norm_before_residual
        layer = GpuEagleLayer(shape, target.device, norms, starts_from_norm=from_norm)
        super().__init__(target, layer, MAX_STEPS, num_slots, max_len, MAX_STEPS)
        self.norms = norms
        self._embeds = target if config.target_embedding else layer
        self._feeds_back_norm = config.norm_output
        self._roots: dict[int, Floats] = {}
        """By slot: the g of its last row (D,)."""
        self._above: list[list[int]] = []
        """Of each sequence's steps the step above."""
        self._states: list[list[tuple[DeviceHidden, int]]] = []
        """Of each sequence's steps the states, and the row, that have the g of what follows."""

    def keep_last(self, slot: int, g: Tensor) -> None:
        """Note the g (D,) of the last row of a slot."""
        self._roots[slot] = to_host(g).copy()  # g is in a buffer

    def read_by_keys(self, g: Tensor, tokens: Ids) -> Tensor:
        """Return what k and v read (ROWS, 2 D) of rows of g (R, D) and the tokens after them (R,)."""
        embedded = self.layers.to_device(self._embeds.embed(tokens))
        return self.layers.normed(torch.cat([embedded, g], 1), self.buffers)

    def begin_draft(
        self, num_steps: Sequence[int], rows: Sequence[int] | None, states: Floats | None
    ) -> _native.ComputedNetwork:
        """Begin a draft below the last rows of slots."""
        self._above, self._states = [[] for _ in num_steps], [[] for _ in num_steps]
        return super().begin_draft(num_steps, rows, states)

    def step_logits(self, steps: Steps) -> Tensor:
        """Compute what follows a row of each sequence that takes part (R, V'): its last prefilled one, then guesses."""
        segments, states = [], []
        for sequence, above in zip(steps.sequences.tolist(), steps.above.tolist(), strict=True):
            slot, parents = self.slots[sequence], self._above[sequence]
            states.append(self._roots[slot] if above < 0 else self._g(sequence, above))
            parents.append(above)
            base, count = self.cache.length(slot) - 1, len(parents)
            segments.append(Segment(slot, base, (0,) * count, (*parents,), count - 1))
        given = np.concatenate(
            [self._embeds.embed(steps.tokens.astype(np.int64)), np.stack(states)], 1
        )
        hidden = self.layers.forward(Batch(tuple(segments)), self.cache, (0,), given)
        for row, sequence in enumerate(steps.sequences.tolist()):
            self._states[sequence].append((hidden, row))
        return self.logits(hidden.states[0])

    def _g(self, sequence: int, step: int) -> Floats:
        """Return the g (D,) of what follows a step; it comes to the host behind that step's logits."""
        hidden, row = self._states[sequence][step]
        return (hidden.last if self._feeds_back_norm else hidden.aux[0])[row]
