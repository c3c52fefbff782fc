"""MLP speculators that draft, natively or in torch: `network.py` has the formulas.

R rows of a step, D width of the target, p inner width, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.drafters.mlp_speculator.network import (
    EPS,
    GATE_TABLES,
    MLPSpeculator,
    MLPSpeculatorConfig,
    RecurrentState,
)
from forerun.drafting import best_first
from forerun.drafting.best_first import Step, TakeSteps
from forerun.drafting.networks.drafter import TorchStateNetwork, target_logits
from forerun.drafting.networks.native import NativeStateNetwork, fill, load_errors, pack
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model
from forerun.weights.rtn import HEAD_BITS


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
    """A network's configuration and its tensors by the names of `MLPSpeculator`.

    `head.i.weight` (V', p) are also there where they were made of the target's rows; without any, the head is the
    target's.
    """

    config: MLPSpeculatorConfig
    tensors: Mapping[str, Tensor]
    tokens: Tensor | None = None
    """The tokens of the head (V',) int64, ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become chances."""
    head_map: Tensor | None = None
    """(D, p): what the target's rows were multiplied by to make the head, if they were."""

    @property
    def heads(self) -> list[Tensor]:
        """Return the heads by depth, the last for all below."""
        found = list[Tensor]()
        while (rows := self.tensors.get(f"head.{len(found)}.weight")) is not None:
            found.append(rows)
        return found


def new_network(
    weights: RecurrentWeights, target: Model, bits: int
) -> NativeNetwork | TorchNetwork:
    """Run on the native kernels where the target does. Raises LoadError naming the weight that is wrong."""
    if isinstance(target, NativeDecoder):
        return NativeNetwork(weights, target, bits)
    return TorchNetwork(weights, target)


class NativeNetwork(NativeStateNetwork):
    """Drafts natively, with the target's threads, its embedding, a copy of the rows of its head."""

    def __init__(self, weights: RecurrentWeights, target: NativeDecoder, bits: int) -> None:
        from forerun import _native

        config = weights.config
        with load_errors():
            network = _native.RecurrentNetwork(
                target.runtime,
                target.native,
                config.inner_dim,
                config.n_predict,
                config.max_depth,
                config.cell == "lstm",
                config.scale_input,
            )
            fill(
                network,
                _native_names(weights.tensors),
                target,
                bits=bits,
                eps=EPS,
                tokens=weights.tokens,
                temperatures=weights.temperatures,
                takes_head=not weights.heads,
            )
            if bits in HEAD_BITS:
                network.map_tokens()
        super().__init__(network)
        self.bits = bits

    def set_head(self, rows: Tensor, tokens: Tensor | None) -> None:
        """Draft with these rows (V', p) of these tokens (V',), ascending, from now on; None for all."""
        if tokens is not None:
            self._native.set_tokens(tokens.tolist())
        pack(self._native, "head.0", rows, self.bits)
        self._native.check()


class TorchNetwork(TorchStateNetwork):
    """Drafts in torch, for a target that runs there; the oracle of the native one. Nothing is rounded."""

    def __init__(self, weights: RecurrentWeights, target: Model) -> None:
        super().__init__(weights.config.max_depth)
        self.weights, self.target, self.tokens = weights, target, weights.tokens
        self.device = target.embed(torch.zeros(0, dtype=torch.int64)).device
        self.heads = [rows.to(self.device) for rows in weights.heads]
        with torch.device("meta"):  # its own head takes no memory: it is not used
            self.net = MLPSpeculator(weights.config)
        own = {n: t.to(self.device) for n, t in weights.tensors.items() if "head" not in n}
        self.net.load_state_dict(own, strict=False, assign=True)
        self.net.requires_grad_(False)

    def new_draft(self, hidden: Tensor) -> TakeSteps:
        """Begin at the states (B, D); a step computes one row after the other."""
        states: list[dict[int, RecurrentState]] = []

        def take_steps(number: int, steps: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
            after = {}
            for s in steps:
                first = not number
                before = self.begin(hidden[s.sequence]) if first else states[s.parent][s.sequence]
                token = torch.tensor(s.token, device=self.device)
                after[s.sequence] = self.advance(token, s.depth, before)
            states.append(after)
            return [self.likeliest(after[s.sequence].x, s) for s in steps]

        return take_steps

    def begin(self, hidden: Tensor) -> RecurrentState:
        """Start at the target's states (..., D), before any token is read."""
        return self.net.begin(hidden.float())

    def advance(self, tokens: Tensor, depth: int, state: RecurrentState) -> RecurrentState:
        """Compute the state after a token each (...)."""
        if self.weights.config.target_embedding:
            rows = self.target.embed(tokens.reshape(-1)).reshape(*tokens.shape, -1)
            added = self.net.token_map(rows.float())
        else:
            added = self.net.embed(tokens, depth)
        return self.net.advanced(state, added, depth)

    def unroll(self, first: Tensor, tokens: Tensor) -> list[Tensor]:
        """Compute states (R, p) after each of the tokens (R, K), from the target's states (R, D)."""
        state, found = self.begin(first.to(self.device)), []
        for depth, column in enumerate(tokens.to(self.device).T):
            state = self.advance(column, depth, state)
            found.append(state.x.cpu())
        return found

    def set_head(self, rows: Tensor, tokens: Tensor | None) -> None:
        """Draft with these rows (V', p) of these tokens (V',), ascending, from now on; None for all."""
        self.heads, self.tokens = [rows.to(self.device)], tokens

    def likeliest(self, state: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return the tokens (k,) to guess after a state (p,), and their chances."""
        if self.heads:
            logits = self.heads[min(step.depth, len(self.heads) - 1)] @ state
        else:
            logits = target_logits(self.target, state, self.tokens)
        return best_first.likeliest(logits, step, self.tokens, self.weights.temperatures)

    def nbytes(self) -> int:
        """Count the bytes of the weights; a head of the target's counts there."""
        every = (*self.heads, *self.weights.tensors.values(), *self.net.state_dict().values())
        held = {each.data_ptr(): each.nbytes for each in every if not each.is_meta}
        return sum(held.values())


def _native_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name the tensors as the kernels do, the tables of an LSTM's gates side by side as `emb.0`."""
    found = dict(tensors)
    if tables := [found.pop(f"{n}.0.weight") for n in GATE_TABLES if f"{n}.0.weight" in found]:
        found["emb.0.weight"] = torch.cat(tables, 1)
    named = dict[str, Tensor]()
    for name, tensor in found.items():
        for theirs, ours in _NATIVE.items():
            name = name.replace(theirs, ours)
        named[name] = tensor
    return named


_NATIVE = {
    "projs.": "proj.",
    "cell_ln.": "ln.",
    "state_ln.0": "state_ln",
    "emb_map": "map",
    ".weight": "",
}
