"""The MLP speculator in torch: what is trained, and the oracle of the native one.

The formulas stand in `drafters/mlp_speculator/config.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.drafters.mlp_speculator.config import EPS, GATE_TABLES, NUM_GATES, MLPSpeculatorConfig


class RecurrentState(NamedTuple):
    """After some steps: what the next one reads, (..., D) at first, then (..., p), and the cell (..., p)."""

    x: Tensor
    cell: Tensor


class ScaledNorm(nn.Module):
    """rms times weight plus bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last dimension of (..., p), with scale and shift where there are any."""
        return rms(x) * self.weight + self.bias


class GateLinear(nn.Linear):
    """The maps of a cell's gates, one below the other."""

    def __init__(self, width: int, num_gates: int, inner: int) -> None:
        super().__init__(width, num_gates * inner, bias=False)
        self.num_gates = num_gates


class OwnHead(nn.Linear):
    """A head that is not the target's: a row a token."""


class MLPSpeculator(nn.Module):
    """The network that is trained, and drafts in torch.

    `embedding` (V, D) and `head` (V', D) are the target's rows, where the configuration takes those; heads of its own
    have a row for each of `num_tokens`, None for all of the vocabulary.
    """

    embedding: Tensor | None
    target_rows: Tensor | None

    def __init__(
        self,
        config: MLPSpeculatorConfig,
        *,
        embedding: Tensor | None = None,
        head: Tensor | None = None,
        num_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("target_rows", head, persistent=False)
        num_sets = 1 if config.tie_weights else config.n_predict
        inner = config.inner_dim
        sources = [config.hidden_size] + [inner] * (
            min(config.n_predict, 2 if num_sets == 1 else num_sets) - 1
        )
        projections = [GateLinear(source, config.num_parts, inner) for source in sources]
        if config.target_embedding:
            parts = config.embedding_dim // inner
            self.emb_map = GateLinear(config.hidden_size, parts, inner)
        if config.target_head:
            maps = _modules(
                nn.Linear(inner, config.hidden_size, bias=False) for _ in range(num_sets)
            )
            self.head_map = maps[0] if config.tie_weights else maps
        else:
            size = num_tokens or config.vocab_size
            self.head = _modules(OwnHead(inner, size, bias=False) for _ in range(num_sets))
        if config.cell == "mlp":
            self.proj = nn.ModuleList(projections)
            self.ln = _modules(ScaledNorm(inner) for _ in range(num_sets))
            if not config.target_embedding:
                self.emb = _modules(nn.Embedding(config.vocab_size, inner) for _ in range(num_sets))
            return
        self.projs = nn.ModuleList(projections)
        self.cell_ln = _modules([ScaledNorm(inner)])
        self.state_ln = _modules([ScaledNorm(inner)])
        if not config.target_embedding:
            tables = ["forget_emb"] if config.tie_lstm_embs else list(GATE_TABLES)
            for name in tables:
                setattr(self, name, _modules([nn.Embedding(config.vocab_size, inner)]))

    def begin(self, hidden: Tensor) -> RecurrentState:
        """Start at the target's hidden states (..., D), before any token is read."""
        x = rms(hidden) / math.sqrt(2) if self.config.scale_input else hidden
        return RecurrentState(x, hidden.new_zeros(*hidden.shape[:-1], self.config.inner_dim))

    def step(
        self, state: RecurrentState, tokens: Tensor, index: int
    ) -> tuple[RecurrentState, Tensor]:
        """Read tokens (...) int64 as step `index`; return the state after it, and logits (..., V) or (..., V')."""
        state, out = self.advance(state, self.embed(tokens, index), index)
        return state, self.logits(out, index)

    def embed(self, tokens: Tensor, index: int = 0) -> Tensor:
        """Compute what tokens (...) add to u, (..., `embedding_dim`)."""
        if self.config.target_embedding:
            assert self.embedding is not None, "the target's embedding"
            return self.token_map(self.embedding[tokens])
        if self.config.cell == "mlp":
            table: Tensor = self.emb[self._own(index)](tokens)
            return table * self.config.token_weight
        names = ["forget_emb"] if self.config.tie_lstm_embs else GATE_TABLES
        return torch.cat([getattr(self, name)[0](tokens) for name in names], -1) * (
            self.config.token_weight
        )

    def token_map(self, rows: Tensor) -> Tensor:
        """Compute what tokens add to u, of the target's embeddings of them (..., D)."""
        mapped: Tensor = self.emb_map(rows)
        return mapped.float() * self.config.token_weight

    def advance(
        self, state: RecurrentState, added: Tensor, index: int
    ) -> tuple[RecurrentState, Tensor]:
        """Take a step whose token adds `added` to u; return the state after it, and what the head's rows multiply."""
        state = self.advanced(state, added, index)
        return state, self._out(state.x, index)

    def advanced(self, state: RecurrentState, added: Tensor, index: int) -> RecurrentState:
        """Return the state after a step whose token adds `added` to u."""
        inner = self.config.inner_dim
        if self.config.cell == "mlp":  # sums in fp32, whatever autocast multiplies in
            u = self.proj[min(index, len(self.proj) - 1)](state.x).float() + added
            x = functional.gelu(self.ln[self._own(index)](u))
            return RecurrentState(x, state.cell)
        u = self.projs[min(index, 1)](state.x).float().unflatten(-1, (NUM_GATES, inner))
        u = u + added.unflatten(-1, (-1, inner))  # one part of `added` goes to all four
        forget, take, give = u[..., :3, :].sigmoid().unbind(-2)
        cell = forget * state.cell + take * functional.gelu(self.cell_ln[0](u[..., 3, :]))
        x = give * functional.gelu(self.state_ln[0](cell))
        return RecurrentState(x, cell)

    def logits(self, out: Tensor, index: int = 0) -> Tensor:
        """Compute the logits of what `advance` returns."""
        if self.config.target_head:
            assert self.target_rows is not None, "the target's head"
            return functional.linear(out, self.target_rows)
        logits: Tensor = self.head[self._own(index)](out)
        return logits

    def _out(self, x: Tensor, index: int) -> Tensor:
        if not self.config.target_head:
            return x
        maps = [self.head_map] if self.config.tie_weights else [*self.head_map.children()]
        mapped: Tensor = maps[self._own(index)](x)
        return mapped

    def _own(self, index: int) -> int:
        return 0 if self.config.tie_weights else index


def rms(x: Tensor) -> Tensor:
    """Scale the vectors (..., n) to unit mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def _modules(modules: object) -> nn.ModuleList:
    return nn.ModuleList(modules)  # type: ignore[arg-type]
