"""Medusa's heads in files: ours, and the published ones (FasterDecoding), as safetensors.

`{k}.{j}.linear.weight` and `.bias` are block j of head k, `{k}.{n}.weight` the rows of head k after its n blocks; names
may begin with `medusa_head.` or `medusa_heads.`. With `target_head`, ours, the rows are the target's, of the tokens
`draft_ids`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import trained
from forerun.drafters.base.networks.options import MAX_STEPS
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.medusa.config import MedusaConfig
from forerun.model.arch.base.settings import Settings
from forerun.weights.base import Checkpoint

NUM_HEADS = 3
"""Of an untrained network."""
_PREFIX = re.compile(r"^(?:medusa_heads?\.)")

MedusaWeights = TrainedNetwork[MedusaConfig]


def check_sizes_of(file: Checkpoint, target: Target) -> MedusaConfig:
    """Read the shapes, without the number of tokens of a head. Raises LoadError."""
    settings = Settings(file)
    return MedusaConfig(
        target.model.config.vocab_size,
        target.model.config.hidden_size,
        settings.integer("medusa_num_heads", high=MAX_STEPS),
        settings.integer("medusa_num_layers", 1, high=MAX_STEPS),
        target_head=settings.flag("target_head", False),
    )


def read(file: Checkpoint, target: Target) -> MedusaWeights:
    """Read the heads for a target. Raises LoadError naming what is wrong."""
    config = check_sizes_of(file, target)
    names = {_PREFIX.sub("", name): name for name in file.names()}
    tokens = trained.head_tokens(file, names, config.vocab_size)
    if tokens is not None:
        config = replace(config, draft_vocab_size=len(tokens))
    tensors = trained.take(file, names, config.shapes(), config.file_name)
    return MedusaWeights(config, tensors, tokens, trained.temperatures(file))


def untrained(target: Target) -> MedusaWeights:
    """Make heads of random weights, one block each."""
    shape = target.model.config
    config = MedusaConfig(shape.vocab_size, shape.hidden_size, NUM_HEADS, target_head=True)
    tensors = trained.untrained_tensors(config.shapes())
    return MedusaWeights(config, tensors, trained.untrained_tokens(shape.vocab_size))
