"""Networks that draft, in torch and nothing rounded: oracles of the native ones.

B sequences, R rows of a step, D width of the target, p inner width, V' tokens of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.types import GuessTree
from forerun.drafters.eagle3.files import EagleWeights
from forerun.drafters.medusa.files import MedusaWeights
from forerun.drafters.mlp_speculator.files import RecurrentWeights
from forerun.lab.torch.networks.eagle3 import Eagle3, Keys
from forerun.lab.torch.networks.medusa import Medusa
from forerun.lab.torch.networks.mlp_speculator import MLPSpeculator, RecurrentState
from forerun.model.model import Model
from tests.oracles.growth import Guess, Solo, Step, TreeNoise, grow, likeliest, noise_of

Noises = Sequence[TreeNoise | None]


class TorchStateNetwork:
    """Grows trees in Python; `new_draft` computes the steps."""

    def __init__(self, max_depth: int, *, sees_depth_alone: bool = False) -> None:
        self.max_depth, self.sees_depth_alone = max_depth, sees_depth_alone

    def new_draft(self, hidden: Floats, noises: Noises) -> Guess:
        """Begin drafts at the states (B, D)."""
        raise NotImplementedError

    def draft(self, request: Solo) -> list[GuessTree]:
        """Grow a tree for each sequence, the likeliest node first."""
        states = request.states
        assert states is not None, "it reads the target's states"
        states = states if request.rows is None else states[[*request.rows]]
        alone = self.sees_depth_alone
        guess = self.new_draft(states, request.noises)
        asked = request.asked(guess, max_depth=self.max_depth, sees_depth_alone=alone)
        return grow(request.request, asked)


def target_logits(target: Model, state: Tensor, tokens: Ids | None) -> Floats:
    """Apply the target's head to a state (D,): logits of the tokens (V',), None for all."""
    if tokens is None:
        return target.head(state[None].numpy())[0]
    return target.head_rows(state[None].numpy(), tokens)[0]


class TorchRecurrent(TorchStateNetwork):
    """The oracle of `RecurrentNetwork`."""

    def __init__(self, weights: RecurrentWeights, target: Model) -> None:
        super().__init__(weights.config.max_depth)
        self.weights, self.target, self.tokens = weights, target, weights.tokens
        stored = weights.by_file_names()
        names = (f"head.{i}.weight" for i in range(weights.config.n_predict))
        self.heads = [torch.from_numpy(stored[n]) for n in names if n in stored]
        with torch.device("meta"):  # its own head takes no memory: it is not used
            self.net = MLPSpeculator(weights.config)
        tensors = {n: torch.from_numpy(t) for n, t in stored.items() if "head" not in n}
        self.net.load_state_dict(tensors, strict=False, assign=True)
        self.net.requires_grad_(False)

    def new_draft(self, hidden: Floats, noises: Noises) -> Guess:
        """Begin at the states (B, D); a step computes one row after the other."""
        states_of = torch.from_numpy(hidden)
        states: dict[tuple[int, int], RecurrentState] = {}

        def guess(number: int, step: Step) -> tuple[Ids, Floats]:
            i = step.sequence
            before = states[i, step.parent] if number else self.begin(states_of[i])
            states[i, number] = self.advance(torch.tensor(step.token), step.depth, before)
            return self.likeliest(states[i, number].x, step, noise_of(noises, i))

        return guess

    def begin(self, hidden: Tensor) -> RecurrentState:
        """Start at the target's states (..., D), before any token is read."""
        return self.net.begin(hidden)

    def advance(self, tokens: Tensor, depth: int, state: RecurrentState) -> RecurrentState:
        """Compute the state after a token each (...)."""
        if self.weights.config.target_embedding:
            rows = torch.from_numpy(self.target.embed(tokens.reshape(-1).numpy()))
            added = self.net.token_map(rows.reshape(*tokens.shape, -1))
        else:
            added = self.net.embed(tokens, depth)
        return self.net.advanced(state, added, depth)

    def likeliest(
        self, state: Tensor, step: Step, noise: TreeNoise | None = None
    ) -> tuple[Ids, Floats]:
        """Return the tokens (k,) to guess after a state (p,), and their probabilities."""
        if self.heads:
            logits = (self.heads[min(step.depth, len(self.heads) - 1)] @ state).numpy()
        else:
            logits = target_logits(self.target, state, self.tokens)
        return likeliest(logits, step, self.tokens, self.weights.temperatures, noise)


class TorchMedusa(TorchStateNetwork):
    """The oracle of `MedusaNetwork`."""

    def __init__(self, weights: MedusaWeights, target: Model) -> None:
        super().__init__(weights.config.medusa_num_heads, sees_depth_alone=True)
        self.weights, self.target = weights, target
        with torch.device("meta"):
            self.net = Medusa(weights.config)
        tensors = {name: torch.from_numpy(each) for name, each in weights.by_file_names().items()}
        self.net.load_state_dict(tensors, assign=True)
        self.net.requires_grad_(False)

    def new_draft(self, hidden: Floats, noises: Noises) -> Guess:
        """Begin at the states (B, D), which every head reads."""
        states = torch.from_numpy(hidden)

        def guess(number: int, step: Step) -> tuple[Ids, Floats]:
            return self.likeliest(states[step.sequence], step, noise_of(noises, step.sequence))

        return guess

    def likeliest(
        self, state: Tensor, step: Step, noise: TreeNoise | None = None
    ) -> tuple[Ids, Floats]:
        """Return the tokens (k,) that the head of a depth guesses after a state (D,), and their probabilities."""
        tokens = self.weights.tokens
        if self.weights.config.target_head:
            logits = target_logits(self.target, self.net.output(state, step.depth), tokens)
        else:
            logits = self.net.logits(state, step.depth).numpy()
        return likeliest(logits, step, tokens, self.weights.temperatures, noise)


@dataclass(slots=True)
class _Rows:
    """A slot: keys and values of the rows, and the last one's g and token."""

    keys: Keys | None = None
    length: int = 0
    token: int = 0
    g: Tensor | None = None


class TorchEagle:
    """The oracle of `EagleNetwork`. A slot holds a sequence: keys and values of the rows that were prefilled."""

    def __init__(self, weights: EagleWeights, target: Model, max_len: int) -> None:
        self.weights, self.max_len = weights, max_len
        embedding = head = None
        if weights.config.target_embedding:
            embedding = torch.from_numpy(target.embed(np.arange(target.config.vocab_size)))
        if weights.config.target_head:
            head = torch.from_numpy(target.head_weights(weights.tokens))
        self.net = Eagle3(weights.config, embedding=embedding, head=head)
        state = {name: torch.from_numpy(tensor) for name, tensor in weights.by_file_names().items()}
        self.net.load_state_dict(state, strict=False)
        self.net.requires_grad_(False)
        self.slots: dict[int, _Rows] = {}

    def prefill(self, slot: int, tokens: Sequence[int], states: Floats) -> None:
        """Add rows: tokens, and the target's states (R, 3 x width) before them. Raises IndexError beyond `max_len`."""
        rows = self.slots.setdefault(slot, _Rows())
        if rows.length + len(tokens) > self.max_len:
            raise IndexError("the sequence does not fit the cache")
        g = self.net.fuse(torch.from_numpy(states))[None]
        rows.keys = self._run(rows.keys, g, tokens, rows.length)[2]
        rows.length, rows.token, rows.g = rows.length + len(tokens), tokens[-1], g[:, -1:]

    def draft(self, request: Solo) -> list[GuessTree]:
        """Grow a tree below the last token that was prefilled of each slot."""
        assert request.rows is not None, "its slots"
        rows = [self.slots[slot] for slot in request.rows]
        after: dict[tuple[int, int], tuple[Tensor, Keys]] = {}

        def guess(number: int, step: Step) -> tuple[Ids, Floats]:
            i, prefilled = step.sequence, rows[step.sequence]
            assert prefilled.keys is not None
            assert prefilled.g is not None
            if number:
                g, keys = after[i, step.parent]
            else:  # the last prefilled row again, over those before it
                g, keys = (
                    prefilled.g,
                    Keys(prefilled.keys.keys[:, :, :-1], prefilled.keys.values[:, :, :-1]),
                )
            g, logits, keys = self._run(keys, g, [step.token], prefilled.length - 1 + step.depth)
            after[i, number] = g, keys
            noise, weights = noise_of(request.noises, i), self.weights
            row = logits[0, -1].numpy()
            return likeliest(row, step, weights.tokens, weights.temperatures, noise)

        request.tokens = [each.token for each in rows]
        return grow(request.request, request.asked(guess))

    def _run(
        self, keys: Keys | None, g: Tensor, tokens: Sequence[int], position: int
    ) -> tuple[Tensor, Tensor, Keys]:
        ids = torch.tensor([[*tokens]])
        positions = torch.arange(position, position + len(tokens))[None]
        return self.net.step(g, ids, positions, keys)
