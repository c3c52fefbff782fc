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

from forerun.core.errors import LoadError
from forerun.drafters import _best_first
from forerun.drafters._best_first import MAX_STEPS, DraftLimits, Step
from forerun.drafters._guess_tree import AnyTextEvidence, GuessTree
from forerun.drafters._last_state import StateNetwork
from forerun.drafters._recurrent import floats, pack
from forerun.nn.backends.native import NativeDecoder
from forerun.nn.model import Model


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


class NativeMedusa:
    """Beside a native target: its threads, a copy of the rows of its head."""

    is_native = True

    def __init__(self, weights: MedusaWeights, target: NativeDecoder, bits: int) -> None:
        from forerun import _native

        temperatures = weights.temperatures
        try:
            network = _native.MedusaNetwork(
                target.runtime, target.native, weights.num_heads, weights.num_layers
            )
            if weights.tokens is not None:
                network.set_tokens(weights.tokens.tolist())
            for name, tensor in weights.tensors.items():
                if tensor.dim() == 2:
                    pack(network, name, tensor, bits)
                else:
                    network.set_norm(name, floats(tensor), None, 0.0)
            if "head.0" not in weights.tensors:
                network.take_head()
                divisor = target.config.logits_divisor
                temperatures = tuple(divisor * each for each in temperatures)
            network.set_temperatures(temperatures)
            network.check()
        except ValueError as error:
            raise LoadError(str(error)) from error
        self._native = network

    def draft(
        self,
        hidden: Tensor,
        tokens: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        beside: AnyTextEvidence | None = None,
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
    ) -> list[GuessTree]:
        """See `StateNetwork`."""
        states = hidden.numpy()  # a native target's: fp32, on the host
        limits = (min(num_steps, MAX_STEPS), min_chance)
        assert beside is None or not isinstance(beside, Sequence)
        return self._native.draft(states, tokens, num_nodes, *limits, beside, min_doubt, rows)

    def nbytes(self) -> int:
        """See `StateNetwork`."""
        return self._native.nbytes()


class TorchMedusa:
    """The same in torch, beside a target that runs there, and the oracle of the native one. Nothing is rounded."""

    is_native = False

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
        beside: AnyTextEvidence | None = None,
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
        return _best_first.grow(
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
        tokens, temperatures = self.weights.tokens, self.weights.temperatures
        for layer in range(self.weights.num_layers):
            name = f"{depth}.{layer}"
            weight, bias = self.tensors[f"block.{name}"], self.tensors[f"bias.{name}"]
            state = state + functional.silu(functional.linear(state, weight, bias))
        if (head := self.tensors.get(f"head.{depth}")) is not None:
            logits = head @ state
        elif tokens is None:
            logits = self.target.head(state[None])[0]
        else:
            logits = self.target.head_rows(state[None], tokens.to(state.device))[0]
        probs = (logits / temperatures[min(depth, len(temperatures) - 1)]).softmax(-1)
        found = probs.sort(descending=True, stable=True)
        ids = found.indices[: _best_first.NUM_NEXT]
        return ids if tokens is None else tokens.to(ids.device)[ids], found.values[: len(ids)]

    def nbytes(self) -> int:
        """See `StateNetwork`; the head is the target's own."""
        return sum(t.nbytes for t in (*self.tensors.values(), *self.weights.tensors.values()))
