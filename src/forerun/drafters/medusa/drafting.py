"""Medusa's heads, run natively or in torch: head k guesses the token 1 + k after the next one.

All heads read the target's last state, so a depth's guesses are the same after all tokens: a step computes one head.

D width of the target, V' tokens of a head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.drafters.medusa.network import Medusa, MedusaConfig
from forerun.drafting import best_first
from forerun.drafting.best_first import Step, TakeSteps
from forerun.drafting.networks.drafter import StateNetwork, TorchStateNetwork, target_logits
from forerun.drafting.networks.native import NativeStateNetwork, fill, load_errors
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """A configuration and its tensors by the names of `Medusa`."""

    config: MedusaConfig
    tensors: Mapping[str, Tensor]
    tokens: Tensor | None = None
    """The tokens of the heads (V',) int64, ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)


def new_network(weights: MedusaWeights, target: Model, bits: int) -> StateNetwork:
    """Run on the native kernels where the target does. Raises LoadError naming the weight that is wrong."""
    if isinstance(target, NativeDecoder):
        return NativeMedusa(weights, target, bits)
    return TorchMedusa(weights, target)


class NativeMedusa(NativeStateNetwork):
    """Drafts natively, with the target's threads, a copy of the rows of its head."""

    def __init__(self, weights: MedusaWeights, target: NativeDecoder, bits: int) -> None:
        from forerun import _native

        config = weights.config
        with load_errors():
            network = _native.MedusaNetwork(
                target.runtime, target.native, config.medusa_num_heads, config.medusa_num_layers
            )
            fill(
                network,
                {_native_name(name): tensor for name, tensor in weights.tensors.items()},
                target,
                bits=bits,
                eps=0.0,
                tokens=weights.tokens,
                temperatures=weights.temperatures,
                takes_head=config.target_head,
            )
        super().__init__(network)


class TorchMedusa(TorchStateNetwork):
    """Drafts in torch, for a target that runs there; the oracle of the native one. Nothing is rounded."""

    def __init__(self, weights: MedusaWeights, target: Model) -> None:
        super().__init__(weights.config.medusa_num_heads, sees_depth_alone=True)
        self.weights, self.target = weights, target
        with torch.device("meta"):
            self.net = Medusa(weights.config)
        device = target.embed(torch.zeros(0, dtype=torch.int64)).device
        self.net.load_state_dict({n: t.to(device) for n, t in weights.tensors.items()}, assign=True)
        self.net.requires_grad_(False)

    def new_draft(self, hidden: Tensor) -> TakeSteps:
        """Begin at the states (B, D), which every head reads."""
        states = hidden.float()

        def take_steps(number: int, steps: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
            return [self.likeliest(states[step.sequence], step) for step in steps]

        return take_steps

    def likeliest(self, state: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return the tokens (k,) that the head of a depth guesses after a state (D,), and their chances."""
        tokens = self.weights.tokens
        if self.weights.config.target_head:
            logits = target_logits(self.target, self.net.output(state, step.depth), tokens)
        else:
            logits = self.net.logits(state, step.depth)
        return best_first.likeliest(logits, step, tokens, self.weights.temperatures)

    def nbytes(self) -> int:
        """Count the bytes of the weights; the head is the target's own."""
        every = (*self.net.parameters(), *self.weights.tensors.values())
        return sum({each.data_ptr(): each.nbytes for each in every}.values())


def _native_name(name: str) -> str:
    """Name a tensor as the kernels do: of head k, `block.k.j` and `bias.k.j` of its block j, and `head.k`."""
    if (block := re.fullmatch(r"(\d+\.\d+)\.linear\.(weight|bias)", name)) is not None:
        return f"{'block' if block[2] == 'weight' else 'bias'}.{block[1]}"
    return f"head.{name.partition('.')[0]}"
