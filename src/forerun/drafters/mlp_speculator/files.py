"""Recurrent networks in files: ours, IBM's and vLLM's `mlp_speculator`, and Snowflake's `sum_lstm`.

What a file leaves out is the target's: with `target_embedding`, a token's vector is `emb_map` on the target's; with
`target_head`, the head is the target's rows times `head_map`. Ours may name the tokens of the head in `draft_ids`. Tied
tensors may be repeated or left out, and all names may begin with `speculator.`.

D width of the target, V its vocabulary, V' rows of the head, p inner width, n depths.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import resources
from pathlib import Path

from forerun.core.errors import LoadError, short_repr
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import trained
from forerun.drafters.base.networks.folder import CONFIG, describe_target
from forerun.drafters.base.networks.options import MAX_STEPS
from forerun.drafters.base.networks.trained import WIDEST, TrainedNetwork
from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.hub.names import cache_root, name_of
from forerun.model.arch.base.settings import LARGEST, Settings
from forerun.model.model import projected_head
from forerun.system.opened import read_json
from forerun.weights.base import Checkpoint
from forerun.weights.stored import stored_floats

AUTO = "auto"
"""The name of the network that was made for the target on this machine, or ships for it."""
SHIPPED = Path(str(resources.files("forerun.drafters.mlp_speculator"))) / "shipped"
"""Networks that came with the package, a folder each."""
_CELLS = {"mlp": False, "sum_rnn": False, "lstm": True, "sum_lstm": True}
_PREFIX = "speculator."

_log = logging.getLogger(__name__)


RecurrentWeights = TrainedNetwork[MLPSpeculatorConfig]
"""`head.i` (V', p) are also there where they were made of the target's rows; without any, it is the target's."""


def find(model: str, target: Target) -> str:
    """Return the network that a name means for a target. Raises LoadError."""
    if model != AUTO:
        return model
    if not (known := fitting(target)):
        raise LoadError(
            "no network ships for this model: give model=FOLDER, as forerun train drafter writes it"
        )
    return str(known[0])


def read(file: Checkpoint, target: Target) -> RecurrentWeights:
    """Read a network for a target. Raises LoadError naming what is wrong."""
    read = stored(file, target)
    tensors = dict(read.tensors)
    for head, name in read.config.head_maps.items():
        head_map = tensors.pop(name)
        rows = projected_head(target.model, read.tokens, head_map.dequantize())
        tensors[head] = stored_floats(head_map.name, rows)
    return replace(read, tensors=tensors)


def networks_dir() -> Path:
    """Return the folder of networks that were made on this machine, one by a model's name; it may not exist yet."""
    return cache_root() / "networks"


def own_folder(model: Path) -> Path:
    """Return where the network that was made here for a model of this path lies, if one was."""
    return networks_dir() / name_of(model)


def fitting(target: Target) -> list[Path]:
    """List the networks made for a target or for one of its size and tokenizer.

    One made here for this model is first, then those that came with the package. Unreadable ones are logged and left
    out.
    """
    if target.vocabulary is None:
        return []
    here, found = describe_target(target, ""), []
    own = None if target.path is None else own_folder(target.path)
    for folder in (SHIPPED, networks_dir()):
        for config in sorted(folder.glob(f"*/{CONFIG}")):
            try:
                trained = read_json(config).get("target")
            except LoadError as error:
                _log.warning("passed over: %s", error)
                continue
            if isinstance(trained, dict) and trained | {"name": ""} == here:
                found.append(config.parent)
    return sorted(found, key=lambda path: path != own)


def stored(file: Checkpoint, target: Target) -> RecurrentWeights:
    """Read a network with the maps that its file has. Raises LoadError."""
    config = check_sizes_of(file, target)
    names = {name.removeprefix(_PREFIX): name for name in file.names()}
    if (shared := names.pop("head_map.weight", None)) is not None:  # untied ones had one, too
        names |= dict.fromkeys(map(config.file_name, config.head_maps.values()), shared)
    tokens = trained.head_tokens(file, names, config.vocab_size)
    shapes = config.shapes()
    if tokens is not None:
        heads = [name for name in shapes if name.startswith("head.")]
        shapes |= dict.fromkeys(heads, (len(tokens), config.inner_dim))
    tensors = trained.take(
        file,
        names,
        shapes,
        config.file_name,
        lambda name: config.tie_weights and name.partition(".")[2].split(".")[0].isdecimal(),
    )
    return RecurrentWeights(config, tensors, tokens, trained.temperatures(file))


def untrained(target: Target) -> RecurrentWeights:
    """Make an LSTM of random weights, as wide as the target."""
    shape = target.model.config
    width = shape.hidden_size
    config = MLPSpeculatorConfig(
        vocab_size=shape.vocab_size,
        hidden_size=width,
        inner_dim=width,
        n_predict=4,
        cell="lstm",
        tie_lstm_embs=True,
        scale_input=False,
        target_embedding=True,
        target_head=True,
    )
    tensors = trained.untrained_tensors(config.shapes())
    del tensors["head_map"]  # the head is the target's own
    return RecurrentWeights(config, tensors, trained.untrained_tokens(shape.vocab_size))


def check_sizes_of(file: Checkpoint, target: Target) -> MLPSpeculatorConfig:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    settings, shape = Settings(file), target.model.config
    width_key = trained.key_of(settings, "input_hidden_dim", "hidden_size", "emb_dim")
    width = settings.integer(width_key, high=WIDEST)
    vocab_size = settings.integer("vocab_size", high=LARGEST["vocab_size"])
    compared = [(width, shape.hidden_size, "states of width")]
    trained.check_sizes([*compared, (vocab_size, shape.vocab_size, "a vocabulary of")])
    cell = settings.get("cell", settings.get("method", "mlp"))
    if not isinstance(cell, str) or cell not in _CELLS:
        raise LoadError(f"'cell' must be one of {', '.join(_CELLS)}, got {short_repr(cell)}")
    is_lstm = _CELLS[cell]
    inner_key = trained.key_of(settings, *(("proj_dim",) if is_lstm else ()), "inner_dim")
    steps_key = trained.key_of(settings, "n_predict", "num_lookahead_tokens")
    return MLPSpeculatorConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        inner_dim=settings.integer(inner_key, 0, low=0, high=WIDEST) or shape.hidden_size,
        n_predict=settings.integer(steps_key, high=MAX_STEPS),
        cell="lstm" if is_lstm else "mlp",
        tie_weights=is_lstm or settings.flag("tie_weights", False),
        tie_lstm_embs=settings.flag("tie_lstm_embs", False),
        scale_input=settings.flag("scale_input", False),
        target_embedding=settings.flag("target_embedding", False),
        target_head=settings.flag("target_head", False),
    )
