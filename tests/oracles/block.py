"""Block drafters in torch, nothing rounded: the oracle of the native one, after the formulas of `dflash/config.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.arrays import Floats, Ids
from forerun.core.types import GuessTree
from forerun.drafters.base.networks.options import MAX_STEPS
from forerun.drafters.dflash.files import BlockWeights
from forerun.model.model import Model
from tests.oracles.growth import Solo, Step, grow, likeliest, noise_of


@dataclass(slots=True)
class _Rows:
    """A slot: what fc made of the target's states (R, D), and the token after the last row."""

    g: Tensor
    token: int = 0


class TorchBlock:
    """The oracle of `BlockNetwork`. A slot holds a sequence."""

    def __init__(self, weights: BlockWeights, target: Model) -> None:
        self.config, self.tokens = weights.config, weights.tokens
        self.temperatures, self.target = weights.temperatures, target
        self.weights = {
            name: torch.from_numpy(each.dequantize()) for name, each in weights.tensors.items()
        }
        self.head = torch.from_numpy(target.head_weights(weights.tokens))
        self.slots: dict[int, _Rows] = {}

    def prefill(self, slot: int, tokens: Sequence[int], states: Floats) -> None:
        """Add rows: the target's aux hidden states (R, aux layers x width), and the tokens after them."""
        empty = torch.zeros(0, self.config.hidden_size)
        rows = self.slots.setdefault(slot, _Rows(empty))
        fused = self._linear("fc", torch.from_numpy(states))
        rows.g = torch.cat([rows.g, self._norm("hidden_norm", fused)])
        rows.token = tokens[-1]

    def states(self, slot: int, num_steps: int = MAX_STEPS) -> Tensor:
        """Return what the head reads of the rows that guess (P, D), no more of them than steps."""
        c, rows = self.config, self.slots[slot]
        size = min(c.block_size, num_steps + (not c.sample_from_anchor))
        ids = [rows.token] + [c.mask_token_id] * (size - 1)
        x = torch.from_numpy(self.target.embed(np.array(ids)))
        for layer in range(len(c.windows)):
            x = self._layer(layer, x, rows.g)
        return self._norm("norm", x)[0 if c.sample_from_anchor else 1 :]

    def draft(self, request: Solo) -> list[GuessTree]:
        """Grow a tree below the last token that was prefilled of each slot."""
        assert request.rows is not None, "its slots"
        states = [self.states(slot, request.num_steps) for slot in request.rows]
        request.tokens = [self.slots[slot].token for slot in request.rows]

        def guess(_: int, step: Step) -> tuple[Ids, Floats]:
            state = states[step.sequence][step.depth]
            noise = noise_of(request.noises, step.sequence)
            logits = self.logits(state, step.token).numpy()
            ids, chances = likeliest(logits, step, self.tokens, self.temperatures, noise)
            return ids, chances * self.trust(state, step.token)

        alone = self.config.markov_rank == 0
        asked = request.asked(guess, max_depth=self.config.num_guesses, sees_depth_alone=alone)
        return grow(request.request, asked)

    def logits(self, state: Tensor, token: int) -> Tensor:
        """Return logits (V',) of a state (D,) behind a token."""
        logits = self.head @ state
        if self.config.markov_rank:
            logits = logits + self._linear("markov.out", self.weights["markov.in"][token])
        return logits

    def trust(self, state: Tensor, token: int) -> float:
        """Return how much of its probabilities a state is worth."""
        if not self.config.has_confidence:
            return 1.0
        if self.config.markov_rank:
            state = torch.cat([state, self.weights["markov.in"][token]])
        *row, bias = self.weights["confidence"]
        return float((torch.stack(row) @ state + bias).sigmoid())

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weights[name])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[name]
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _layer(self, layer: int, x: Tensor, g: Tensor) -> Tensor:
        c, part = self.config, f"{layer}." if len(self.config.windows) > 1 else ""
        read = self._norm(part + "input_norm", x)
        keys = torch.cat([g, read])
        shape = (-1, c.head_dim)
        q = self._linear(part + "q", read).unflatten(-1, (c.num_attention_heads, -1))
        k, v = (
            self._linear(f"{part}{n}", keys).unflatten(-1, (c.num_key_value_heads, -1))
            for n in "kv"
        )
        q = self._rotate(self._norm(part + "q_norm", q), len(g))
        k = self._rotate(self._norm(part + "k_norm", k), 0)
        each = c.num_attention_heads // c.num_key_value_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * shape[1] ** -0.5
        mixed = torch.einsum(
            "hij,jhd->ihd",
            scores.masked_fill(~self._seen(layer, len(g), len(x)), -torch.inf).softmax(-1),
            v,
        )
        x = x + self._linear(part + "o", mixed.flatten(1))
        read = self._norm(part + "mlp_norm", x)
        gate = functional.silu(self._linear(part + "gate", read))
        return x + self._linear(part + "down", gate * self._linear(part + "up", read))

    def _seen(self, layer: int, rows: int, size: int) -> Tensor:
        """Say what rows of the block see (B, R + B)."""
        c = self.config
        window = c.windows[layer] or rows
        before = torch.arange(rows) >= rows - window
        block = torch.ones(size, size, dtype=torch.bool)
        if not c.bidirectional[layer]:
            block = block.tril()
        return torch.cat([before.expand(size, rows), block], 1)

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        """Rotate heads (R, H, E) of rows from a position on."""
        frequencies = torch.from_numpy(self.config.rope.inverse_frequencies())
        angles = torch.arange(position, position + len(x))[:, None].float() * frequencies
        cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin
