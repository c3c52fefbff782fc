"""The MLP speculator (Wertheimer et al., arXiv 2404.19124), and the same with an LSTM cell (Snowflake's `sum_lstm`).

A state starts as the target's hidden state h_t (after the final norm) and is advanced by one token a step: step i reads
token t+1+i and its output predicts token t+2+i. With a = state weight 0.5^(0.5/n), b = sqrt((1 - a^2) p/2):

    x = rms(h) / sqrt(2)                     with `scale_input`, else h
    u = P_i x + (b/a) E[token]               P_0 reads h, the others a step; all are P_1 with `tie_weights`
    mlp:   x = gelu(ln(u)),  y = x
    lstm:  f, i, o = sigmoid(u_1, u_2, u_3);  c = f c + i gelu(ln_cell(u_4));  x = o gelu(ln_state(c)),  y = x
    logits = head y

`rms(x) = x / sqrt(mean(x^2) + 1e-6)`, ln is rms times weight plus bias, gelu the exact one, c starts at zero.

The target's embedding and head need not be copied: with `target_embedding`, E[token] = `emb_map` e(token), as wide as
all of u (or as p, then used for each of the cell's four parts); with `target_head`, logits = W (`head_map` y), W rows
of the target's head; untied, each step has a `head_map`. Maps can be multiplied into copies of the rows, which other
engines read.

D hidden width of the target, p inner width, n steps, V vocabulary, B rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from forerun.drafters.base.networks.options import MAX_STEPS

EPS = 1e-6
GATE_TABLES = ("forget_emb", "input_emb", "output_emb", "cell_emb")
_IN_FILES = {"map": "emb_map", "state_ln": "state_ln.0"} | {n: f"{n}.0" for n in GATE_TABLES}
_OF_LSTM = {"proj": "projs", "ln": "cell_ln"}
"""What files call the tensors where they do not call them as the kernels do."""
NUM_GATES = 4
"""Parts of u in an LSTM cell: forget, input, output, candidate."""


@dataclass(frozen=True, slots=True)
class MLPSpeculatorConfig:
    """Shapes and ties; the names are those of IBM's and Snowflake's configurations where those have them."""

    vocab_size: int
    hidden_size: int
    """Width D of the target's states."""
    inner_dim: int
    """Width p of the network's own state."""
    n_predict: int
    """Steps it is made for; with tied weights it can go further."""
    cell: Literal["mlp", "lstm"] = "mlp"
    tie_weights: bool = True
    """Every step has the same embedding, norms and head, and every step but the first the same matrix."""
    tie_lstm_embs: bool = False
    """The parts of the cell read the same embedding, as wide as p."""
    scale_input: bool = True
    target_embedding: bool = False
    target_head: bool = False

    @property
    def state_weight(self) -> float:
        """Return a: what is left of the state after n steps is a^n = sqrt(1/2)."""
        return float(0.5 ** (0.5 / self.n_predict))

    @property
    def token_weight(self) -> float:
        """Return b/a, which embeddings are multiplied by."""
        b = math.sqrt((1 - self.state_weight**2) * self.inner_dim / 2)
        return b / self.state_weight

    @property
    def max_depth(self) -> int:
        """Count the steps of a draft at most: with tied weights it can go on."""
        return MAX_STEPS if self.tie_weights and self.n_predict > 1 else self.n_predict

    @property
    def num_parts(self) -> int:
        """Count the vectors of width p in u."""
        return NUM_GATES if self.cell == "lstm" else 1

    @property
    def embedding_dim(self) -> int:
        """Return the width of what a token adds to u."""
        return self.inner_dim * (1 if self.tie_lstm_embs else self.num_parts)

    @property
    def head_maps(self) -> dict[str, str]:
        """Name the map before the target's rows that each head is made of; none if the heads are its own."""
        if not self.target_head:
            return {}
        if self.tie_weights:
            return {"head.0": "head_map"}
        return {f"head.{i}": f"head_map.{i}" for i in range(self.n_predict)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List the tensors by the kernels' names; the tables of an LSTM's gates make up `emb.0`."""
        inner, width, is_mlp = self.inner_dim, self.num_parts * self.inner_dim, self.cell == "mlp"
        num_heads = 1 if self.tie_weights else self.n_predict
        num_maps = min(self.n_predict, 2 if num_heads == 1 else num_heads)
        norms = [f"ln.{i}" for i in range(num_heads)] if is_mlp else ["ln.0", "state_ln"]
        shapes: dict[str, tuple[int, ...]] = {
            f"proj.{i}": (width, inner if i else self.hidden_size) for i in range(num_maps)
        }
        for norm in norms:
            shapes |= {norm: (inner,), f"{norm}.bias": (inner,)}
        if self.target_embedding:
            shapes["map"] = (self.embedding_dim, self.hidden_size)
        else:
            gates = GATE_TABLES[:1] if self.tie_lstm_embs else GATE_TABLES
            tables = [f"emb.{i}" for i in range(num_heads)] if is_mlp else gates
            shapes |= dict.fromkeys(tables, (self.vocab_size, inner))
        shapes |= dict.fromkeys(self.head_maps.values(), (self.hidden_size, inner))
        if not self.target_head:
            shapes |= {f"head.{i}": (self.vocab_size, inner) for i in range(num_heads)}
        return shapes

    def file_name(self, name: str) -> str:
        """Return what a folder calls a tensor."""
        last = "bias" if name.endswith(".bias") else "weight"
        name = name.removesuffix(".bias")
        part, _, number = name.partition(".")
        if self.cell == "lstm" and part in _OF_LSTM:
            return f"{_OF_LSTM[part]}.{number}.{last}"
        return f"{_IN_FILES.get(name, name)}.{last}"
