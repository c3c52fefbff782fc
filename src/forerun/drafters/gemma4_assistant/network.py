"""Gemma 4's assistants: a few layers whose queries read the target's own keys and values.

    x = pre [E(token); h]        E: the target's embedding, scaled as it scales it; h: the state that its head read
    n = norm(layers(x))          each layer reads the target's last layer of its kind that has keys and values
    h = post n                   for the token after the next one
    logits = head n              of all tokens, or of those in the clusters whose centroids are nearest to n

No row leaves keys or values: every row of a draft stands at the position of the text's last token, which is not in the
target's cache yet, and sees what is committed there.

R rows, D width of the target, A width of the assistant, C clusters, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.drafters.base.draft_head import DraftHead, Scores, TextTokens
from forerun.drafters.base.networks.decoders import load_draft_decoder, load_linear_map
from forerun.model.cache.base import KVCache
from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.weights.rtn import Scheme
from forerun.weights.stored import StoredTensor


@dataclass(frozen=True, slots=True)
class Clusters:
    """What cuts the head: `centroids` (C, A), the tokens of each cluster (C, V / C), and how many clusters are read."""

    centroids: Floats
    tokens: Ids
    num_read: int


@dataclass(frozen=True, slots=True)
class AssistantWeights:
    """An assistant as it is stored: the weights of a decoder that borrows keys and values, `pre`, `post`, clusters."""

    config: ModelConfig
    layers: tuple[tuple[str, StoredTensor], ...]
    pre: StoredTensor
    """(A, 2 D)."""
    post: StoredTensor
    """(D, A)."""
    clusters: Clusters | None = None


class AssistantLayers:
    """Runs an assistant beside its target, on the target's backend."""

    def __init__(self, weights: AssistantWeights, target: Model, quant: Scheme) -> None:
        self.target, self.clusters = target, weights.clusters
        self.decoder = load_draft_decoder(target, weights.config, weights.layers, quant)
        self.pre = load_linear_map(target, weights.pre, quant)
        self.post = load_linear_map(target, weights.post, quant)
        self.listed: DraftHead | None = None

    def cut(self, listed: Ids) -> None:
        """Score these tokens (n,) and each text's own, where the file has no clusters."""
        if self.clusters is None:
            self.listed = DraftHead(self.decoder, self.decoder.config.vocab_size, listed)

    def step(
        self, cache: KVCache, slots: list[int], tokens: list[int], hidden: Floats
    ) -> tuple[Floats, Floats]:
        """Take a token and the state before it of each slot: n (R, A), and the states h after them (R, D)."""
        embedded = self.target.embed(np.array(tokens))
        inputs = self.pre.head(np.concatenate([embedded, hidden], -1))
        rows = (Segment(slot, cache.length(slot), (0,)) for slot in slots)
        last = self.decoder.forward(Batch(tuple(rows)), cache, inputs=inputs).last
        return last, self.post.head(last)

    def scores(self, rows: Floats, texts: list[TextTokens]) -> list[Scores]:
        """Return what may follow rows n (R, A), each of another text."""
        vocab_size = self.decoder.config.vocab_size
        if self.clusters is not None:
            return [self._near(row, self.clusters) for row in rows]
        if self.listed is not None:
            return self.listed.scores(rows, texts)
        return [Scores(row, None, vocab_size) for row in self.decoder.head(rows)]

    def _near(self, row: Floats, clusters: Clusters) -> Scores:
        """Score the tokens of the clusters nearest to a row (A,)."""
        near = clusters.centroids @ row
        best = np.argsort(-near, kind="stable")[: clusters.num_read]
        ids = np.sort(clusters.tokens[best].ravel())
        logits = self.decoder.head_rows(row[None], ids)[0]
        return Scores(logits, ids, self.decoder.config.vocab_size)

    def nbytes(self) -> int:
        """Count the bytes of the weights, those of the target apart."""
        maps = sum(part.nbytes() for part in (self.decoder, self.pre, self.post))
        if self.clusters is None:
            return maps
        return maps + self.clusters.centroids.nbytes + self.clusters.tokens.nbytes
