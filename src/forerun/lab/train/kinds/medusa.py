"""Train Medusa's heads, and write them as FasterDecoding's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from forerun.core.arrays import Ids
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import Array
from forerun.drafters.medusa import NETWORK
from forerun.drafters.medusa.config import MedusaConfig
from forerun.lab.torch.networks.medusa import Medusa
from forerun.lab.train.batches import TrainBatch
from forerun.lab.train.learners import PIECE, Kind, Learner
from forerun.model.model import Model


class MedusaLearner(Learner):
    """Heads on the target's rows; those of published files are them multiplied out."""

    name, piece = "medusa", PIECE

    def __init__(self, kind: Kind, target: Model, ids: Ids, weights: Mapping[str, Tensor]) -> None:
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
        """Compute the outputs from the last state alone."""
        hidden = batch.last[batch.at]
        return [self.net.output(hidden, index).float() for index in range(self.depth)]


LEARNER = MedusaLearner


def exported(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Array]]:
    """Return configuration and tensors as other engines read them. Raises LoadError."""
    weights = NETWORK.read(str(folder), target)
    config, tensors = weights.config, dict[str, Array](weights.by_file_names())
    for k in range(config.medusa_num_heads):
        head = f"{k}.{config.medusa_num_layers}.weight"
        if config.target_head:
            tensors[head] = target.model.head_weights(None)
        elif weights.tokens is not None:
            rows = np.zeros((config.vocab_size, config.hidden_size), np.float32)
            rows[weights.tokens], tensors[head] = tensors[head], rows
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "medusa_num_heads": config.medusa_num_heads,
        "medusa_num_layers": config.medusa_num_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }, tensors
