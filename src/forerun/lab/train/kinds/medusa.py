"""Train Medusa's heads, and write them as FasterDecoding's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from forerun.drafters.medusa import files
from forerun.drafters.medusa.network import Medusa, MedusaConfig
from forerun.drafting.base import Target
from forerun.lab.train.batches import TrainBatch
from forerun.lab.train.learners import PIECE, Kind, Learner
from forerun.model.model import Model, head_matrix


class MedusaLearner(Learner):
    """Heads on the target's rows; those of published files are them multiplied out."""

    name, piece = "medusa", PIECE

    def __init__(
        self, kind: Kind, target: Model, ids: Tensor, weights: Mapping[str, Tensor]
    ) -> None:
        self.depth, self.source = kind.depth, target
        self.shape = MedusaConfig(
            target.config.vocab_size,
            target.config.hidden_size,
            kind.depth,
            kind.num_layers,
            draft_vocab_size=len(ids),
            target_head=True,
        )
        self.net = Medusa(self.shape)

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Of the last state alone."""
        hidden = batch.last[batch.at]
        return [self.net.output(hidden, index).float() for index in range(self.depth)]


LEARNER = MedusaLearner


def exported(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return configuration and tensors as other engines read them. Raises LoadError."""
    weights = files.read(str(folder), target)
    config, tensors = weights.config, dict(weights.tensors)
    for k in range(config.medusa_num_heads):
        head = f"{k}.{config.medusa_num_layers}.weight"
        if config.target_head:
            tensors[head] = head_matrix(target.model, None)
        elif weights.tokens is not None:
            own = torch.zeros(config.vocab_size, config.hidden_size)
            tensors[head] = own.index_copy(0, weights.tokens, tensors[head])
    return {
        "model_type": files.MODEL_TYPE,
        "architectures": ["MedusaModel"],
        "medusa_num_heads": config.medusa_num_heads,
        "medusa_num_layers": config.medusa_num_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }, tensors
