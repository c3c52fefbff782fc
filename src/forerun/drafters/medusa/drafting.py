"""Medusa's heads, run natively or in torch: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.drafting.base import NGramKind
from forerun.drafting.networks import best_first
from forerun.drafting.networks.best_first import MAX_STEPS, DraftLimits, Step
from forerun.drafting.networks.last_state import StateNetwork, target_logits
from forerun.drafting.networks.native import NativeStateNetwork, fill, load_errors
from forerun.drafting.ngram.guess_tree import AnyNGramModel, GuessTree
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """Of head k and its block j: `block.k.j` (D, D), `bias.k.j` (D,), `head.k` (V', D) unless the target's is taken."""

    num_heads: int
    num_layers: int
    tensors: Mapping[str, Tensor]
    tokens: Tensor | None = None
    """The tokens of the heads (V',) int64, ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)


def new_network(weights: MedusaWeights, target: Model, bits: int) -> StateNetwork:
    """On the native kernels where the target runs on them. Raises LoadError naming the weight that is wrong."""
    if isinstance(target, NativeDecoder):
        return NativeMedusa(weights, target, bits)
    return TorchMedusa(weights, target)


class NativeMedusa(NativeStateNetwork):
    """Beside a native target: its threads, a copy of the rows of its head."""

    def __init__(self, weights: MedusaWeights, target: NativeDecoder, bits: int) -> None:
        from forerun import _native

        with load_errors():
            network = _native.MedusaNetwork(
                target.runtime, target.native, weights.num_heads, weights.num_layers
            )
            fill(
                network,
                weights.tensors,
                target,
                bits=bits,
                eps=0.0,
                tokens=weights.tokens,
                temperatures=weights.temperatures,
                takes_head="head.0" not in weights.tensors,
            )
        super().__init__(network)


class TorchMedusa:
    """The same in torch, beside a target that runs there, and the oracle of the native one. Nothing is rounded."""

    ngrams: NGramKind = "python"

    def __init__(self, weights: MedusaWeights, target: Model) -> None:
        self.weights, self.target = weights, target
        device = target.embed(torch.zeros(0, dtype=torch.int64)).device
        self.tensors = {name: t.float().to(device) for name, t in weights.tensors.items()}

    def draft(
        self,
        hidden: Tensor,
        tokens: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        beside: AnyNGramModel | None = None,
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
    ) -> list[GuessTree]:
        """See `StateNetwork`."""
        states = (hidden if rows is None else hidden[[*rows]]).float()

        def take_steps(number: int, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
            found = [self.likeliest(states[step.sequence], step.depth) for step in steps]
            return torch.stack([ids for ids, _ in found]), torch.stack([p for _, p in found])

        limits = DraftLimits(min(num_steps, MAX_STEPS), min_chance, min_doubt)
        assert beside is None or isinstance(beside, Sequence)
        return best_first.grow(
            tokens,
            num_nodes,
            limits,
            self.weights.num_heads,
            take_steps,
            beside or (),
            sees_depth_alone=True,
        )

    def likeliest(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens (k,) of head `depth` after a state (D,) and their chances."""
        tokens = self.weights.tokens
        for layer in range(self.weights.num_layers):
            name = f"{depth}.{layer}"
            weight, bias = self.tensors[f"block.{name}"], self.tensors[f"bias.{name}"]
            state = state + functional.silu(functional.linear(state, weight, bias))
        if (head := self.tensors.get(f"head.{depth}")) is not None:
            logits = head @ state
        else:
            logits = target_logits(self.target, state, tokens)
        return best_first.likeliest(logits, depth, tokens, self.weights.temperatures)

    def nbytes(self) -> int:
        """See `StateNetwork`; the head is the target's own."""
        return sum(t.nbytes for t in (*self.tensors.values(), *self.weights.tensors.values()))
