"""Medusa's heads in files: ours, and the published ones (FasterDecoding), as safetensors.

`{k}.{j}.linear.weight` and `.bias` are block j of head k, `{k}.{n}.weight` the rows of head k after its n blocks; names
may begin with `medusa_head.` or `medusa_heads.`. With `target_head`, ours, the rows are the target's, of the tokens
`draft_ids`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forerun.core.errors import LoadError
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks.folder import UNTRAINED, Folder
from forerun.drafters.base.networks.network import MAX_STEPS
from forerun.drafters.medusa.config import MedusaConfig
from forerun.drafters.medusa.drafting import MedusaWeights

MODEL_TYPE = "medusa"
NUM_HEADS = 3
"""Of an untrained network."""
_PREFIX = re.compile(r"^(?:medusa_heads?\.)")


def check_folder(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model == UNTRAINED:
        return
    path = expanded(model)
    config = network_folder.config_of(path)
    if config.get("model_type") != MODEL_TYPE and "medusa_num_heads" not in config:
        raise LoadError(
            f"{path} holds model_type {config.get('model_type')!r}, which is not Medusa"
        )


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a folder of another target, without its weights."""
    if model != UNTRAINED:
        _config(network_folder.read_config(expanded(model), target), target)


def read(model: str, target: Target) -> MedusaWeights:
    """Read the heads for a target. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    folder = network_folder.read(expanded(model), target)
    config = _config(folder, target)
    names = {_PREFIX.sub("", name): name for name in folder.tensors}
    tokens = None
    if (name := names.pop(network_folder.DRAFT_IDS, None)) is not None:
        tokens = network_folder.token_ids(folder, name, config.vocab_size)
        config = replace(config, draft_vocab_size=len(tokens))
    weights = folder.network(names, config.shapes())
    return MedusaWeights(config, weights, tokens, network_folder.temperatures(folder))


def _config(folder: Folder, target: Target) -> MedusaConfig:
    """Read the shapes, without the number of tokens of a head. Raises LoadError."""
    config = MedusaConfig(
        target.model.config.vocab_size,
        target.model.config.hidden_size,
        folder.number("medusa_num_heads"),
        folder.number("medusa_num_layers", default=1),
        target_head=folder.flag("target_head"),
    )
    if max(config.medusa_num_heads, config.medusa_num_layers) > MAX_STEPS:
        raise LoadError(f"{folder.path}: at most {MAX_STEPS} heads of {MAX_STEPS} blocks")
    return config


def untrained(target: Target) -> MedusaWeights:
    """Make heads of random weights, one block each."""
    shape = target.model.config
    config = MedusaConfig(shape.vocab_size, shape.hidden_size, NUM_HEADS, target_head=True)
    tensors = network_folder.untrained_tensors(config.shapes())
    return MedusaWeights(config, tensors, network_folder.untrained_tokens(shape.vocab_size))
