"""What differs between the kinds of drafters that are trained: how they start, and what they make of a batch.

Step i of a row t has read token t+1+i and guesses token t+2+i, which the target guesses in row t+1+i. All but the first
step read the text's own tokens, as they would after right guesses, and their own states (training-time test).

N rows learned from, R rows of the batch, D hidden width, V' draft vocabulary, K steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.lab.train.batches import TrainBatch
from forerun.model.model import Model

PIECE = 64


class Learner(ABC):
    """A network of one kind with its target."""

    name: str
    """The `model_type` of config.json."""
    shape: Any
    """Its configuration, a dataclass."""
    source: Model
    """The model whose embedding and head it has: the target, or a sibling that it was cut from."""
    net: Any
    """The module that is trained."""
    layers: tuple[int, ...] = ()
    """Of the target, whose outputs it reads beside the last state."""
    piece: int | None = None
    """Rows of a piece; None if it looks back at whole texts."""

    def config(self) -> dict[str, object]:
        """Return the kind and its configuration, as they stand in config.json."""
        return {"model_type": self.name, **asdict(self.shape)}

    @abstractmethod
    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Return for each step, (N, D) fp32, what the target's head rows multiply."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is to be trained."""

    name: str
    depth: int = 3
    cell: str = "lstm"
    inner_dim: int = 0
    """Of mlp_speculator, and of the MLP of eagle3; 0 is the target's."""
    num_layers: int = 1
    """Of each head of medusa."""
    for_gguf: bool = False
    """eagle3 with the norms that llama.cpp has: one before `fc`, and none of what is fed back."""


KINDS = ("mlp_speculator", "eagle3", "medusa")


def kind_module(name: str) -> ModuleType:
    """Import what trains and exports a kind. Raises ConfigError if it is unknown, or its drafter is not there."""
    if name not in KINDS:
        raise ConfigError(f"--kind must be one of {', '.join(KINDS)}, got {name!r}")
    registry.load("drafters", name)
    return import_module(f"forerun.lab.train.kinds.{name}")


def new_learner(kind: Kind, target: Model, ids: Tensor, weights: Mapping[str, Tensor]) -> Learner:
    """Make an untrained drafter; `weights` are the target's as fp32, those of its last layer and norm, for eagle3.

    Raises ConfigError.
    """
    learner: Learner = kind_module(kind.name).new_learner(kind, target, ids, weights)
    return learner
