"""What differs between the kinds of drafters that are trained: how they start, and what they make of a batch.

Step i of a row t has read token t+1+i and guesses token t+2+i, which the target guesses in row t+1+i. All but the first
step read the text's own tokens, as they would after right guesses, and their own states (training-time test).

N rows learned from, R rows of the batch, D hidden width, V' draft vocabulary, K steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from forerun.core import registry
from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks.folder import Array, is_float
from forerun.lab.output import writing
from forerun.lab.train.batches import TrainBatch
from forerun.llm import LLM
from forerun.model.model import Model

PIECE = 64


class Learner(ABC):
    """A network of one kind with its target."""

    name: str
    """The `model_type` of config.json, and the drafter that runs it."""
    shape: Any
    """Its configuration, a dataclass."""
    source: Model
    """The model whose embedding and head it has: the target, or a sibling that it was cut from."""
    net: Any
    """The module that is trained."""
    depth: int
    """Steps of a draft."""
    layers: tuple[int, ...] = ()
    """Of the target, whose outputs it reads beside the last state."""
    piece: int | None = None
    """Rows of a piece; None if it looks back at whole texts."""
    int8 = False
    """Whether its matrices are written as int8 codes."""
    is_trained = False
    """Whether it begins with weights that were trained before, so that it is measured before the first step."""
    is_pretrained = False
    """On texts it learns their own tokens, without the target, whose states it does not read."""
    is_tried_early = True
    """Whether it is written and run in the engine after each measurement."""

    def config(self) -> dict[str, object]:
        """Return the kind and its configuration, as they stand in config.json."""
        return {"model_type": self.name, **asdict(self.shape)}

    @abstractmethod
    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Return for each step, (N, D) fp32, what the head's rows multiply."""

    def head_of(self, step: int, shared: Tensor) -> Tensor:
        """Return a step's rows of the head (V', D), in the type of the target's own, which are `shared`."""
        return shared

    def write(
        self,
        folder: Path,
        weights: Mapping[str, Tensor],
        ids: Ids,
        target: Mapping[str, object],
        temperatures: Sequence[float],
    ) -> None:
        """Write a folder with these weights, each file whole, the configuration last. Raises OSError."""
        shape = self.source.config
        sizes = ("hidden_size", "num_layers", "vocab_size")
        config = self.config() | {
            "draft_vocab_size": len(ids),
            "target": {**target, **{name: getattr(shape, name) for name in sizes}},
            "temperature": [*temperatures],
        }
        write_network(folder, config, weights, ids, int8=self.int8)

    def drafter_options(self, folder: Path) -> dict[str, object]:
        """Return the options that the drafter of a written folder is run with."""
        return {"model": str(folder)}

    def figures(self, llm: LLM, folder: Path, ids: Ids, tau: float) -> dict[str, object]:
        """Measure further figures for the record, of a written folder."""
        return {}

    def notes(self, record: Mapping[str, Any]) -> list[str]:
        """Return lines to print below the results."""
        return []


def write_network(
    folder: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    ids: Ids,
    *,
    int8: bool = False,
) -> None:
    """Write config.json and model.safetensors, fp16 or int8 codes. Raises ForerunError if there is no room."""
    tensors: dict[str, Array] = {name: each.half().numpy() for name, each in weights.items()}
    if int8:
        tensors = network_folder.rounded(tensors)
    with writing(folder):
        network_folder.write(folder, config, {**tensors, network_folder.DRAFT_IDS: ids})


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
    tied: bool = True
    """Of mlp_speculator with the cell mlp: every step has the same weights."""
    own_embedding: bool = False
    """Of mlp_speculator: vectors of its own for tokens, in place of a map of the target's."""
    own_head: bool = False
    """Of mlp_speculator: rows of its own for tokens, in place of a map before the target's."""
    zero_tokens: bool = False
    """Of mlp_speculator: tokens add nothing, so that guesses follow from the state alone."""
    for_gguf: bool = False
    """eagle3 with the norms that llama.cpp has: one before `fc`, and none of what is fed back."""


KINDS = ("mlp_speculator", "eagle3", "medusa")


def kind_module(name: str) -> ModuleType:
    """Import what trains and exports a kind. Raises ConfigError if it is unknown, or its drafter is not there."""
    if name not in KINDS:
        raise ConfigError(f"--kind must be one of {', '.join(KINDS)}, got {name!r}")
    registry.load("drafters", name)
    return import_module(f"forerun.lab.train.kinds.{name}")


def new_learner(kind: Kind, target: Model, ids: Ids, weights: Mapping[str, Tensor]) -> Learner:
    """Make an untrained drafter; `weights` are the target's as fp32, those of its last layer and norm, for eagle3.

    Raises ConfigError.
    """
    learner: Learner = kind_module(kind.name).LEARNER(kind, target, ids, weights)
    return learner


def export(folder: Path, out: Path, target: Target) -> None:
    """Write a folder as other engines read it: what is the target's becomes rows of its own, in fp16.

    What their formats lack is left out: the calibration, the target's name. Heads but EAGLE-3's have all tokens.
    Raises LoadError for a folder that does not fit the target, and OSError.
    """
    kind = network_folder.open_network(str(folder)).config.get("model_type")
    module = kind_module(str(kind) if kind in KINDS else "eagle3")
    config, tensors = module.exported(folder, target)
    halves = {n: t.astype(np.float16) if is_float(t) else t for n, t in tensors.items()}
    network_folder.write(out, config | {"torch_dtype": "float16"}, halves)
