"""Heads that draft inside a model's own file: what their tensors are called.

A head is a block of the model's own kind behind its last layer, and what makes its input of a token and a state
(DeepSeek-V3, arXiv 2412.19437). Qwen3-Next and Qwen3.5 call it `mtp.*`, GGUF files `blk.N.nextn.*` with N the number of
the model's layers, folders of DeepSeek's kind `model.layers.N.*`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

_MOST = 16
"""Heads one after the other, at most; the first alone is used, over and over."""


@dataclass(frozen=True, slots=True)
class MtpNames:
    """The tensors of a head, without `.weight`; `block` begins the names of its block's."""

    block: str
    fc: str
    embedding_norm: str
    hidden_norm: str
    norm: str
    embed: str | None = None
    """An embedding of its own, if the file has one; else the model's."""
    head: str | None = None
    """Rows of logits of its own, if the file has them; else the model's."""


def head_of(names: Container[str], num_layers: int) -> MtpNames | None:
    """Return the head of a checkpoint with these tensors, whose model has so many layers; None without one."""
    if "mtp.fc.weight" in names:
        norms = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        return MtpNames("mtp.layers.0.", "mtp.fc", *norms)
    return block_head(names, num_layers)


def block_head(names: Container[str], index: int) -> MtpNames | None:
    """Return the head that lies among the layers as that of this number; None if none does."""
    for block, inner, shared in (
        (f"blk.{index}.", "nextn.", "_"),
        (f"model.layers.{index}.", "", "."),
    ):
        start = block + inner
        if f"{start}eh_proj.weight" not in names:
            continue
        last = (f"shared_head{shared}norm", "embed_tokens", f"shared_head{shared}head")
        named = (start + name for name in ("eh_proj", "enorm", "hnorm", *last))
        fc, embedding_norm, hidden_norm, norm, embed, head = named
        return MtpNames(block, fc, embedding_norm, hidden_norm, norm, embed, head)
    return None


def head_blocks(names: Container[str], num_layers: int) -> tuple[str, ...]:
    """Return how the names of tensors begin that are those of heads among the layers."""
    heads = (block_head(names, i) for i in range(num_layers, num_layers + _MOST))
    return tuple(head.block for head in heads if head is not None)
