"""Medusa (Cai et al., arXiv 2401.10774): heads that each guess one token further from the target's last state alone.

Head k reads h_t (after the final norm) and predicts token t+2+k, whatever the tokens between: y = x + silu(W x + b)
for each of its blocks, then the rows of its own head, or the target's with `target_head`.
Names are those of the published files: `{k}.{j}.linear.weight`, `.bias` of block j, `{k}.{n}.weight` of the head.

D hidden width of the target, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Shapes; the names are those of published configurations where those have them."""

    vocab_size: int
    hidden_size: int
    medusa_num_heads: int
    medusa_num_layers: int = 1
    draft_vocab_size: int = 0
    """Rows of a head; 0 is `vocab_size`."""
    target_head: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List the heads' tensors by the kernels' names: block j of head k, its bias, and head k."""
        width, shapes = self.hidden_size, dict[str, tuple[int, ...]]()
        for k in range(self.medusa_num_heads):
            for j in range(self.medusa_num_layers):
                shapes |= {f"block.{k}.{j}": (width, width), f"bias.{k}.{j}": (width,)}
            if not self.target_head:
                shapes[f"head.{k}"] = (self.draft_vocab_size or self.vocab_size, width)
        return shapes

    def file_name(self, name: str) -> str:
        """Return what a folder calls a tensor."""
        kind, _, number = name.partition(".")
        if kind == "head":
            return f"{number}.{self.medusa_num_layers}.weight"
        return f"{number}.linear.{'weight' if kind == 'block' else 'bias'}"
