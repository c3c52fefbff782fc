"""A draft model of a shape of its own, trained from random weights: on text first, then on the target's replies.

So it can be made as small as a draft should be, 1 to 2 % of its target (FastDraft, arXiv 2411.11055), where layers that
are cut out of the target are as wide as it is. Its embedding and head are the target's through a map each, E W and
H W', so only the maps and the layers are trained; as files they are rows of its own.

V vocabulary, D width of the target, h width of the draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from forerun.core.errors import ConfigError
from forerun.lab.quantize.hf_export import described
from forerun.lab.train import trim
from forerun.lab.train.draft_model import (
    NAMES,
    DraftDecoder,
    DraftModelLearner,
    DraftShape,
    NonLayers,
)
from forerun.model.arch import llama
from forerun.model.arch.base.mapping import Arch
from forerun.model.config import ModelConfig, RopeConfig
from forerun.model.model import Model
from forerun.model.shapes import weight_shapes
from forerun.weights.checkpoint import Checkpoint

ROWS = 4096
"""Rows of the embedding and head that are mapped at once."""


def config_of(target: ModelConfig, hidden: int, layers: int, heads: int) -> ModelConfig:
    """Return Llama's form in these sizes, with an MLP of 8/3 of the width. Raises ConfigError."""
    for name, number in (("--hidden", hidden), ("--layers", layers), ("--heads", heads)):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}")
    if hidden % (32 * heads):
        raise ConfigError(
            f"--hidden must be a multiple of 32 for each of the {heads} --heads, got {hidden}"
        )
    head_dim, theta = hidden // heads, 1e4 if target.rope is None else target.rope.theta
    return ModelConfig(
        family="llama",
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        intermediate_size=-(-hidden * 8 // 3 // 32) * 32,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position=target.max_position,
        norm_eps=target.norm_eps,
        rope=RopeConfig(theta, head_dim),
    )


def shape_of(config: ModelConfig, target: ModelConfig, draft_vocab: int) -> DraftShape:
    """Return all its layers, and what a step reads."""
    cost = trim.cost(config, target, min(draft_vocab, target.vocab_size))
    return DraftShape((*range(config.num_layers),), cost)


class NewDecoder(DraftDecoder):
    """Layers between a map of the target's embeddings and one onto what its head reads."""

    def __init__(self, config: ModelConfig, width: int, seed: int) -> None:
        """`width` is the target's."""
        super().__init__(config, range(config.num_layers), _random_weights(config, seed))
        generator = torch.Generator().manual_seed(seed + 1)
        self.embed_map = nn.Linear(width, config.hidden_size, bias=False)
        self.head_map = nn.Linear(config.hidden_size, width, bias=False)
        for linear in (self.embed_map, self.head_map):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)

    def forward(self, embedded: Tensor) -> Tensor:
        """Return the target's head's input (L, D) of a text's embedded tokens (L, D)."""
        outputs: Tensor = self.head_map(super().forward(self.embed_map(embedded)))
        return outputs


class NewDraftLearner(DraftModelLearner):
    """Trains a draft of a shape of its own; `source` is the target, whose embedding and head it maps."""

    is_pretrained = True

    def __init__(
        self, target: Model, depth: int, config: ModelConfig, shape: DraftShape, checkpoint: Checkpoint,
        num_tokens: int, seed: int,
    ) -> None:  # fmt: skip
        """`checkpoint` is the target's, whose tokenizer the draft gets."""
        self.config_of_draft = config
        net = NewDecoder(config, target.config.hidden_size, seed)
        super().__init__(target, depth, shape, {}, checkpoint, num_tokens, net=net)

    def non_layers(self, weights: Mapping[str, Tensor]) -> NonLayers:
        """Return rows of its own: the target's, mapped."""
        tensors = {
            "embed": _mapped(self._embedding(), weights["embed_map.weight"].T),
            "head": _mapped(self._head(), weights["head_map.weight"]),
        }
        config = self.config_of_draft
        return NonLayers(cast(Arch, llama), config, described(config), tensors)

    def _embedding(self) -> Iterator[np.ndarray]:
        vocab_size = self.source.config.vocab_size
        for first in range(0, vocab_size, ROWS):
            yield self.source.embed(np.arange(first, min(first + ROWS, vocab_size)))

    def _head(self) -> Iterator[np.ndarray]:
        vocab_size = self.source.config.vocab_size
        for first in range(0, vocab_size, ROWS):
            yield self.source.head_weights(np.arange(first, min(first + ROWS, vocab_size)))


def _random_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Draw matrices of variance 1 / inputs, and less for those that add to the residual stream."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        short = name.rpartition(".")[2]
        if short not in (*NAMES, "norm"):
            continue
        weights[name] = torch.ones(shape)
        if len(shape) == 2:
            weights[name] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
        if short in ("o", "down"):
            weights[name] *= (2 * config.num_layers) ** -0.5
    return weights


def _mapped(rows: Iterator[np.ndarray], weight: Tensor) -> Tensor:
    """Multiply rows (V, D), part by part, by weights (D, h): (V, h) in fp16."""
    return torch.cat([(torch.from_numpy(part) @ weight.float()).half() for part in rows])
