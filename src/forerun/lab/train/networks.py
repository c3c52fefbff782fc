"""The network that a run begins with: a new one, or one that was trained before and goes on with other replies."""

from __future__ import annotations

from pathlib import Path

import torch

from forerun.core.arrays import Ids
from forerun.core.config import AUTO
from forerun.core.errors import ConfigError, LoadError
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import check_target, open_network
from forerun.drafters.base.networks.trained import head_tokens, take
from forerun.lab.train.draft_model import weights_of
from forerun.lab.train.kept import FOUND_KIND, RECORD
from forerun.lab.train.learners import Kind, Learner, kind_module, new_learner
from forerun.llm import LLM
from forerun.system.opened import read_json
from forerun.weights.checkpoint import open_checkpoint

GOING_ON = 0.25
"""Times the rate, for a trained drafter: at the whole one it unlearns in 100k tokens what 600k do not bring back."""


def new(llm: LLM, kind: Kind, ids: Ids) -> Learner:
    """Make an untrained network of the target; eagle3 begins as its last layer. Raises ConfigError."""
    last = [llm.model.config.num_layers - 1]
    weights = weights_of(open_checkpoint(llm.path), last) if kind.name == "eagle3" else {}
    return new_learner(kind, llm.model, ids, weights)


def trained(target: Target, begin: Path) -> tuple[Learner, Kind, Ids]:
    """Make the network that a folder of `forerun train drafter` holds, of its kind, and its draft vocabulary.

    `auto` is the network that drafts for the target by default. Raises ConfigError if none does, and LoadError for a
    folder of another target, or of other engines.
    """
    found = kind_module(FOUND_KIND).fitting(target) if str(begin) == AUTO else [expanded(begin)]
    path = next(iter(found), None)
    if path is None:
        raise ConfigError("no network ships for this model: give --from FOLDER, or leave it out")
    file = open_network(str(path))
    check_target(file, target)
    try:
        kind = Kind(**read_json(path / RECORD)["kind"])
    except (OSError, KeyError, TypeError) as error:
        raise LoadError(
            f"{path} has no {RECORD} that says its kind: give a folder that forerun train drafter wrote"
        ) from error
    names = {name: name for name in file.names()}
    if (ids := head_tokens(file, names, target.model.config.vocab_size)) is None:
        raise LoadError(f"{path} has no draft_ids: give a folder that forerun train drafter wrote")
    learner = new_learner(kind, target.model, ids, {})
    shapes = {name: tuple(weight.shape) for name, weight in learner.net.state_dict().items()}
    tensors = take(file, names, shapes, str)
    learner.net.load_state_dict({n: torch.from_numpy(t.dequantize()) for n, t in tensors.items()})
    learner.is_trained = True
    return learner, kind, ids
