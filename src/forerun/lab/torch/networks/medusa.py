"""Medusa's heads in torch: what is trained, and the oracle of the native ones.

The formulas and names stand in `drafters/medusa/config.py`. D hidden width of the target, V' draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.drafters.medusa.config import MedusaConfig


class ResBlock(nn.Module):
    """y = x + silu(W x + b); W and b begin at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return x + functional.silu(self.linear(x))


class Medusa(nn.Module):
    """The heads that are trained, and draft in torch. `head` (V', D) is the target's rows, if it takes those."""

    target_rows: Tensor | None

    def __init__(self, config: MedusaConfig, *, head: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("target_rows", head, persistent=False)
        rows = config.draft_vocab_size or config.vocab_size
        for index in range(config.medusa_num_heads):
            blocks: list[nn.Module] = [
                ResBlock(config.hidden_size) for _ in range(config.medusa_num_layers)
            ]
            if not config.target_head:
                blocks.append(nn.Linear(config.hidden_size, rows, bias=False))
            self.add_module(str(index), nn.ModuleList(blocks))

    def output(self, hidden: Tensor, index: int) -> Tensor:
        """Compute what head `index`'s rows multiply, of hidden states (..., D)."""
        blocks = self.get_submodule(str(index))
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks[: self.config.medusa_num_layers]:
            hidden = block(hidden)
        return hidden

    def logits(self, hidden: Tensor, index: int) -> Tensor:
        """Compute logits (..., V') of head `index`, of hidden states (..., D)."""
        out = self.output(hidden, index)
        if self.config.target_head:
            assert self.target_rows is not None, "the target's head"
            return functional.linear(out, self.target_rows)
        rows: Tensor = self.get_submodule(f"{index}.{self.config.medusa_num_layers}")(out)
        return rows

    def step(self, hidden: Tensor) -> Tensor:
        """Compute logits of all heads at once, (..., heads, V')."""
        return torch.stack(
            [self.logits(hidden, index) for index in range(self.config.medusa_num_heads)], -2
        )
