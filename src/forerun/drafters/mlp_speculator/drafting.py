"""Recurrent networks that draft: IBM's MLP speculator, and the same with an LSTM's cell.

The state before the first guess is the target's own, as its head reads it. A step takes a token and makes the next
state of the last one and of the token's embedding:

    mlp:   s = gelu(ln(P s + a e)),          a = sqrt((1 - w^2) p / 2) / w,   w = 0.5^(0.5 / n)
    lstm:  f, i, o, g = P s + a e (each),    c = sig(f) c + sig(i) gelu(ln(g)),   s = sig(o) gelu(ln(c))

ln is x / sqrt(mean(x^2) + 1e-6) times a weight, plus a bias; gelu is the exact one. The head says what comes next.

Sources: Wertheimer et al. (arXiv 2404.19124), fms-extras; the LSTM's cell: ArcticInference (`sum_lstm`).

R rows of a step, D width of the target, p inner width, n depths that were trained, V' tokens of the head.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.drafters.mlp_speculator.head_map import HeadMap
from forerun.drafters.mlp_speculator.kept_map import KeptMap
from forerun.drafting.base import NGramKind, Target
from forerun.drafting.networks import best_first
from forerun.drafting.networks.best_first import MAX_STEPS, DraftLimits, Step
from forerun.drafting.networks.last_state import target_logits
from forerun.drafting.networks.native import NativeStateNetwork, fill, load_errors, pack
from forerun.drafting.ngram.guess_tree import AnyNGramModel, GuessTree
from forerun.drafting.vocabulary import fingerprint
from forerun.model.backends.native import NativeDecoder
from forerun.model.model import Model
from forerun.weights.rtn import HEAD_BITS

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
    """A network's weights, by our names, whatever file they come from.

    Of depth i: `proj.i` (p or 4 p, D or p), `ln.i` (p,) with `ln.i.bias`, `emb.i` (V, p), `head.i` (V', p); what a
    depth has not is that of the depth before, and the target's where there is none. `map` (p, D) is applied to the
    target's embedding. The LSTM also has `state_ln`; its embedding, or map, may be 4 p wide: each gate's own.
    """

    inner_size: int
    num_predict: int
    max_depth: int
    is_lstm: bool
    scales_input: bool
    tensors: Mapping[str, Tensor]
    tokens: Tensor | None = None
    """The tokens of the head (V',) int64, ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become chances."""
    head_map: Tensor | None = None
    """(D, p): what the target's rows were multiplied by to make `head.0`, if they were."""


def new_network(
    weights: RecurrentWeights, target: Model, bits: int
) -> NativeNetwork | TorchNetwork:
    """On the native kernels where the target runs on them. Raises LoadError naming the weight that is wrong."""
    if isinstance(target, NativeDecoder):
        return NativeNetwork(weights, target, bits)
    return TorchNetwork(weights, target)


def new_learner(
    weights: RecurrentWeights, network: NativeNetwork | TorchNetwork, target: Target
) -> HeadMap | None:
    """What learns for a network while it serves, from what was kept on; None if it has not one head of its own."""
    head = weights.tensors.get("head.0")
    if head is None or "head.1" in weights.tensors:
        return None
    cell = network if isinstance(network, TorchNetwork) else TorchNetwork(weights, target.model)
    learner = HeadMap(cell, network, target.model, weights)
    if target.path is not None and target.vocabulary is not None:
        vocabulary = fingerprint(target.vocabulary)
        digest = f"{zlib.crc32(head.half().numpy().tobytes()):08x}"
        learner.keep_in(KeptMap(target.path, vocabulary, digest, target.learned_in))
    return learner


class NativeNetwork(NativeStateNetwork):
    """Beside a native target: its threads, its embedding, a copy of the rows of its head."""

    def __init__(self, weights: RecurrentWeights, target: NativeDecoder, bits: int) -> None:
        from forerun import _native

        with load_errors():
            network = _native.RecurrentNetwork(
                target.runtime,
                target.native,
                weights.inner_size,
                weights.num_predict,
                weights.max_depth,
                weights.is_lstm,
                weights.scales_input,
            )
            fill(
                network,
                weights.tensors,
                target,
                bits=bits,
                eps=EPS,
                tokens=weights.tokens,
                temperatures=weights.temperatures,
                takes_head="head.0" not in weights.tensors,
            )
            if bits in HEAD_BITS:
                network.map_tokens()
        super().__init__(network)
        self.bits = bits

    def set_head(self, rows: Tensor, tokens: Tensor | None) -> None:
        """See `MappedNetwork`."""
        if tokens is not None:
            self._native.set_tokens(tokens.tolist())
        pack(self._native, "head.0", rows, self.bits)
        self._native.check()


class TorchNetwork:
    """The same in torch, beside a target that runs there, and the oracle of the native one. Nothing is rounded."""

    ngrams: NGramKind = "python"

    def __init__(self, weights: RecurrentWeights, target: Model) -> None:
        width = weights.inner_size
        self.weights, self.target, self.tokens = weights, target, weights.tokens
        decay = 0.5 ** (0.5 / weights.num_predict)
        self.emb_weight = ((1 - decay**2) * width / 2) ** 0.5 / decay
        self.device = target.embed(torch.zeros(0, dtype=torch.int64)).device
        self.tensors = {name: t.float().to(self.device) for name, t in weights.tensors.items()}

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
        states: list[dict[int, tuple[Tensor, Tensor]]] = []
        hidden = hidden if rows is None else hidden[[*rows]]

        def take_steps(number: int, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
            before = [
                states[s.parent][s.sequence] if number else (hidden[s.sequence], None)
                for s in steps
            ]
            after = [self.step(step, state, cell) for step, (state, cell) in zip(steps, before)]
            states.append({step.sequence: pair for step, pair in zip(steps, after)})
            rows = [self.likeliest(pair[0], step.depth) for step, pair in zip(steps, after)]
            return torch.stack([ids for ids, _ in rows]), torch.stack([p for _, p in rows])

        limits = DraftLimits(min(num_steps, MAX_STEPS), min_chance, min_doubt)
        assert beside is None or isinstance(beside, Sequence)
        depth = self.weights.max_depth
        return best_first.grow(tokens, num_nodes, limits, depth, take_steps, beside or ())

    def step(self, step: Step, state: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        """The state (p,) and the LSTM's cell (p,) after a token."""
        return self.advance(torch.tensor(step.token, device=self.device), step.depth, state, cell)

    def advance(
        self, tokens: Tensor, depth: int, state: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """States (..., p) and the LSTM's cells (..., p) after a token each (...). At depth 0 `state` is (..., D)."""
        weights = self.weights
        state = state.float()
        if depth == 0 and weights.scales_input:
            state = state / (state.square().mean(-1, keepdim=True) + EPS).sqrt() / 2**0.5
        gates = functional.linear(state, self._at("proj", depth))
        e = self.emb_weight * self._embed(tokens, depth)
        gates = gates + e.tile(gates.shape[-1] // e.shape[-1])
        if not weights.is_lstm:
            state = functional.gelu(self._norm("ln", depth, gates))
            return state, state
        forget, take, give, candidate = gates.chunk(4, -1)
        new = take.sigmoid() * functional.gelu(self._norm("ln", depth, candidate))
        if cell is not None:
            new = new + forget.sigmoid() * cell
        norm = self._scaled(new, self.tensors["state_ln"], self.tensors.get("state_ln.bias"))
        return give.sigmoid() * functional.gelu(norm), new

    @torch.no_grad()
    def unroll(self, first: Tensor, tokens: Tensor) -> list[Tensor]:
        """See `MappedNetwork`."""
        state, cell, found = first.to(self.device), None, []
        for depth, column in enumerate(tokens.to(self.device).T):
            state, cell = self.advance(column, depth, state, cell)
            found.append(state.cpu())
        return found

    def set_head(self, rows: Tensor, tokens: Tensor | None) -> None:
        """See `MappedNetwork`."""
        self.tensors["head.0"], self.tokens = rows.to(self.device), tokens

    def likeliest(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens (k,) after a state (p,) and their chances."""
        if "head.0" in self.tensors:
            logits = self._at("head", depth) @ state
        else:
            logits = target_logits(self.target, state, self.tokens)
        return best_first.likeliest(logits, depth, self.tokens, self.weights.temperatures)

    def nbytes(self) -> int:
        """See `StateNetwork`; the head is the target's own."""
        every = (*self.tensors.values(), *self.weights.tensors.values())
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in every}.values())

    def _at(self, name: str, depth: int) -> Tensor:
        return next(
            t for i in range(depth, -1, -1) if (t := self.tensors.get(f"{name}.{i}")) is not None
        )

    def _embed(self, tokens: Tensor, depth: int) -> Tensor:
        if "emb.0" in self.tensors:
            return self._at("emb", depth)[tokens]
        rows = self.target.embed(tokens.reshape(-1)).reshape(*tokens.shape, -1)
        return functional.linear(rows, self.tensors["map"]) if "map" in self.tensors else rows

    def _norm(self, name: str, depth: int, x: Tensor) -> Tensor:
        weight = self._at(name, depth)
        bias = next(
            (
                b
                for i in range(depth, -1, -1)
                if (b := self.tensors.get(f"{name}.{i}.bias")) is not None
            ),
            None,
        )
        return self._scaled(x, weight, bias)

    @staticmethod
    def _scaled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        return y if bias is None else y + bias
