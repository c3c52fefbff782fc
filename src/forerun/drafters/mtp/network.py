"""A head that drafts (MTP): a block of the model's own kind behind its last state, and the model's own logits.

    x = fc [rms(E(token)); rms(h)]      of the next token, and the state h that the target's head read before it
    n = norm(block(x))                  keys and values of its own: see `__init__`
    logits = head(n)                    of the token after the next

A guessed row has no state of the target: its h is the n of the row before it.

R rows, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.batch import Batch
from forerun.drafters.base.networks.decoders import load_draft_decoder, load_linear_map, ones, rms
from forerun.model.cache.base import KVCache
from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.weights.rtn import Scheme
from forerun.weights.stored import StoredTensor

MAX_ROWS = 256
"""Rows of a pass: bounds its buffers where a long prompt is read."""


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head as it is stored: `fc` (D, 2 D), two norms (D,), the weights of a decoder of one layer by their names."""

    config: ModelConfig
    fc: StoredTensor
    embedding_norm: Floats
    hidden_norm: Floats
    block: tuple[tuple[str, StoredTensor], ...]
    text: tuple[tuple[str, StoredTensor], ...] = ()
    """An embedding and a head of its own, `embed` and `head`; none: the model's."""


class HeadLayers:
    """Runs a head beside its target: `fc` and the block are decoders of the target's backend."""

    def __init__(self, weights: HeadWeights, target: Model, quant: Scheme) -> None:
        self.eps = weights.config.norm_eps
        self.norms = (weights.embedding_norm, weights.hidden_norm)
        self.fc = load_linear_map(target, weights.fc, quant)
        self.block = load_draft_decoder(target, weights.config, weights.block, quant)
        self.text = target
        """Whose embedding and head it has."""
        if weights.text:
            shape = target.config.without_layers(tied_head=len(weights.text) == 1)
            norm = "norm", ones("norm", shape.hidden_size)  # no pass reads it
            self.text = load_draft_decoder(target, shape, [*weights.text, norm])

    def inputs(self, tokens: list[int], hidden: Floats) -> Floats:
        """Make the block's rows (R, D) of tokens and the states (R, D) before them."""
        parts = self.text.embed(np.array(tokens)), hidden
        normed = [rms(norm, self.eps, part) for norm, part in zip(self.norms, parts, strict=True)]
        return self.fc.head(np.concatenate(normed, -1))

    def run(self, batch: Batch, cache: KVCache, inputs: Floats) -> Floats:
        """Compute rows: their states n (R, D), normed."""
        return self.block.forward(batch, cache, inputs=inputs).last

    def nbytes(self) -> int:
        """Count the weights, those of the target apart."""
        return self.fc.nbytes() + self.block.nbytes() + sum(norm.nbytes for norm in self.norms)
