"""Block drafters, DFlash and DSpark, on a device: csrc/drafters/block_network.cpp.

R rows, D width, V' tokens of the head, r rank of the Markov head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.host import to_host
from forerun.gpu.layers import Layer
from forerun.gpu.matrices import ROWS
from forerun.gpu.networks.base import Steps
from forerun.gpu.networks.layered import GpuLayeredNetwork, decoder_shape
from forerun.model.config import ModelConfig
from forerun.weights.codes import FORMATS, Bytes
from forerun.weights.stored import StoredTensor


class GpuBlockLayers(GpuDecoder):
    """Layers that fill blocks: windows count the rows before one, and of some layers a row sees those behind it."""

    def __init__(
        self, config: ModelConfig, device: torch.device, bidirectional: Sequence[bool]
    ) -> None:
        super().__init__(config, device)
        self._bidirectional = bidirectional

    def _layer(self, index: int) -> Layer:
        sees_block = self._bidirectional[index]
        return replace(super()._layer(index), fills_blocks=True, is_bidirectional=sees_block)


class GpuBlock(GpuLayeredNetwork):
    """Fills a block, the last token and masks, when a draft needs it first.

    With a Markov head, `markov.in` and `markov.out`, logits have added what the token before says; of `confidence`, a
    row of D + r + 1 numbers, comes how much of its probabilities a row is worth.
    """

    layer_names = MappingProxyType({"input_norm": "attn_norm"})

    def __init__(self, target: GpuDecoder, config: Any, num_slots: int, max_len: int) -> None:
        size = config.block_size
        shape = decoder_shape(config, max_len + size, config.windows)
        layers = GpuBlockLayers(shape, target.device, config.bidirectional)
        sees_depth_alone = config.markov_rank == 0
        super().__init__(
            target, layers, config.num_guesses, num_slots, max_len, size, sees_depth_alone=sees_depth_alone
        )  # fmt: skip
        self._shape, self._first = config, size - config.num_guesses
        self._before: StoredTensor | None = None
        self._confidence: Floats | None = None
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}
        """By sequence: the states (guesses, D) that the head read, and the logits (guesses, V')."""

    def set(self, name: str, format: str, num_in: int, rows: Bytes) -> None:
        """Take a matrix; that of the tokens before stays on the host."""
        if name == "markov.in":
            self._before = StoredTensor(name, (len(rows), num_in), FORMATS[format], rows)
        else:
            super().set(name, format, num_in, rows)

    def set_norm(self, name: str, weight: Floats, bias: Floats | None, eps: float) -> None:
        """Take a vector."""
        if name == "confidence":
            self._confidence = weight
        else:
            super().set_norm(name, weight, bias, eps)

    def begin_draft(
        self, num_steps: Sequence[int], rows: Sequence[int] | None, states: Floats | None
    ) -> _native.ComputedNetwork:
        """Begin a draft behind the last rows of slots."""
        self._blocks.clear()
        return super().begin_draft(num_steps, rows, states)

    def step(self, rows: NDArray[np.int32]) -> tuple[Floats, NDArray[np.float64] | None]:
        """Say what may follow rows (R, 5) of `StepRow`: logits (R, V'), and what these are worth."""
        steps = Steps(*rows.T)
        unfilled = [i for i in steps.sequences.tolist() if i not in self._blocks]
        with self.layers.current():
            if unfilled:
                self._fill(unfilled, steps)
            places = zip(steps.sequences.tolist(), steps.depths.tolist(), strict=True)
            states, said = zip(*((x[k], z[k]) for i, k in places for x, z in (self._blocks[i],)))
            logits, before = torch.stack(said), None
            if self._before is not None:
                before = self._before.rows(steps.tokens.astype(np.int64)).dequantize()
                self._add_markov(before, logits)
            found = to_host(logits)
            if self._confidence is None:
                return found, None
            read = to_host(torch.stack(states))
        if before is not None:
            read = np.concatenate([read, before], 1)
        return found, np.array([_worth(self._confidence, row) for row in read])

    def _fill(self, sequences: Sequence[int], steps: Steps) -> None:
        """Fill blocks in one pass; masks behind the last place that is guessed are left out."""
        shape, first = self._shape, self._first
        num_read = max(min(self.num_steps[i], shape.num_guesses) for i in sequences)
        size = min(shape.block_size, num_read + first)
        slots = [self.slots[i] for i in sequences]
        masks = [shape.mask_token_id] * (size - 1)
        given = self.target.embed(
            np.array([[self.last_tokens[slot], *masks] for slot in slots]).ravel()
        )
        segments = (Segment(slot, self.cache.length(slot), (0,) * size) for slot in slots)
        found = self.layers.forward(Batch(tuple(segments)), self.cache, inputs=given)
        states = found.states[0].view(len(slots), size, -1)[:, first : first + num_read]
        for sequence, each in zip(sequences, states, strict=True):
            self._blocks[sequence] = each, self.logits(each).clone()

    def _add_markov(self, before: Floats, logits: Tensor) -> None:
        """Add what tokens, as rows (R, r), say of the next to logits (R, V')."""
        markov, read = self.matrices["markov.out"], self.layers.to_device(before)
        for x, out in zip(read.split(ROWS), logits.split(ROWS), strict=True):
            markov.multiply(self.read("markov", x, markov), len(x), out, adds=True)


def _worth(weights: Floats, read: Floats) -> float:
    """Return sigmoid of weights times what is read, added up in order, and the last weight."""
    total = np.add.accumulate(weights[:-1].astype(np.float64) * read)[-1] + float(weights[-1])
    return 1 / (1 + math.exp(-total)) if total > -700 else 0.0
