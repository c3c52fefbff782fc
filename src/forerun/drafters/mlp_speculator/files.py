"""Recurrent networks in files: ours, IBM's and vLLM's `mlp_speculator`, and Snowflake's `sum_lstm`.

What a file leaves out is the target's: with `target_embedding`, a token's vector is `emb_map` on the target's; with
`target_head`, the head is the target's rows times `head_map`. Ours may name the tokens of the head in `draft_ids`. Tied
tensors may be repeated or left out, and all names may begin with `speculator.`.

D width of the target, V its vocabulary, V' rows of the head, p inner width, n depths.
"""

from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path

from forerun.core.arrays import Ids
from forerun.core.errors import LoadError, short_repr
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks.folder import UNTRAINED, Array, Folder
from forerun.drafters.base.networks.network import MAX_STEPS
from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.drafters.mlp_speculator.drafting import RecurrentWeights
from forerun.hub.names import cache_root, name_of
from forerun.model.model import projected_head
from forerun.system.opened import read_json

MODEL_TYPE = "mlp_speculator"
AUTO = "auto"
"""The name of the network that was made for the target on this machine, or ships for it."""
SHIPPED = Path(str(resources.files("forerun.drafters.mlp_speculator"))) / "shipped"
"""Networks that came with the package, a folder each."""
_CELLS = {"mlp": False, "sum_rnn": False, "lstm": True, "sum_lstm": True}
_PREFIX = "speculator."

_log = logging.getLogger(__name__)


def check_folder(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model in (AUTO, UNTRAINED):
        return
    path = network_folder.at(model)
    if (model_type := network_folder.config_of(path).get("model_type")) != MODEL_TYPE:
        raise LoadError(f"{path} holds model_type {model_type!r}; allowed: {MODEL_TYPE}")


def read(model: str, target: Target) -> RecurrentWeights:
    """Read a network for a target. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    folder = network_folder.read(_path(model, target), target)
    config, tensors, tokens = stored(folder, target)
    for head, head_map in config.head_maps.items():
        tensors[head] = projected_head(target.model, tokens, tensors.pop(head_map))
    temperatures = network_folder.temperatures(folder)
    return RecurrentWeights(config, tensors, tokens, temperatures)


def _path(model: str, target: Target) -> Path:
    if model != AUTO:
        return network_folder.at(model)
    if not (known := fitting(target)):
        raise LoadError(
            "no network ships for this model: give model=FOLDER, as forerun train drafter writes it"
        )
    return known[0]


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
    here, found = network_folder.describe_target(target, ""), []
    own = None if target.path is None else own_folder(target.path)
    for folder in (SHIPPED, networks_dir()):
        for config in sorted(folder.glob(f"*/{network_folder.CONFIG}")):
            try:
                trained = read_json(config).get("target")
            except LoadError as error:
                _log.warning("passed over: %s", error)
                continue
            if isinstance(trained, dict) and trained | {"name": ""} == here:
                found.append(config.parent)
    return sorted(found, key=lambda path: path != own)


def stored(
    folder: Folder, target: Target
) -> tuple[MLPSpeculatorConfig, dict[str, Array], Ids | None]:
    """Read the configuration, the tensors of `MLPSpeculator`, and the tokens of the head. Raises LoadError."""
    config = _config(folder, target)
    names = {name.removeprefix(_PREFIX): name for name in folder.tensors}
    if (shared := names.pop("head_map.weight", None)) is not None:  # untied ones had one, too
        names |= dict.fromkeys(config.head_maps.values(), shared)
    tokens = None
    if (name := names.pop(network_folder.DRAFT_IDS, None)) is not None:
        tokens = network_folder.token_ids(folder, name, config.vocab_size)
    wanted = config.shapes()
    if tokens is not None:
        heads = [name for name in wanted if name.startswith("head.")]
        wanted |= dict.fromkeys(heads, (len(tokens), config.inner_dim))
    tensors = folder.network(
        names,
        wanted,
        lambda name: config.tie_weights and name.partition(".")[2].split(".")[0].isdecimal(),
    )
    return config, tensors, tokens


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
    tensors = network_folder.untrained_tensors(config.shapes())
    del tensors["head_map.weight"]  # the head is the target's own
    return RecurrentWeights(config, tensors, network_folder.untrained_tokens(shape.vocab_size))


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a folder of another target, by its configuration alone."""
    if model not in (AUTO, UNTRAINED):
        _config(network_folder.read_config(network_folder.at(model), target), target)


def _config(folder: Folder, target: Target) -> MLPSpeculatorConfig:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    config = target.model.config
    width = folder.number("input_hidden_dim", "hidden_size", "emb_dim")
    compared = [(width, config.hidden_size, "states of width")]
    compared += [(folder.number("vocab_size"), config.vocab_size, "a vocabulary of")]
    folder.check_target(compared)
    cell = folder.config.get("cell", folder.config.get("method", "mlp"))
    if not isinstance(cell, str) or cell not in _CELLS:
        raise LoadError(
            f"{folder.path}: 'cell' must be one of {', '.join(_CELLS)}, got {short_repr(cell)}"
        )
    is_lstm = _CELLS[cell]
    names = ("proj_dim", "inner_dim") if is_lstm else ("inner_dim",)
    num_predict = folder.number("n_predict", "num_lookahead_tokens")
    if num_predict > MAX_STEPS:
        raise LoadError(f"{folder.path}: n_predict must be at most {MAX_STEPS}, got {num_predict}")
    return MLPSpeculatorConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        inner_dim=folder.number(*names, default=0, least=0) or config.hidden_size,
        n_predict=num_predict,
        cell="lstm" if is_lstm else "mlp",
        tie_weights=is_lstm or folder.flag("tie_weights"),
        tie_lstm_embs=folder.flag("tie_lstm_embs"),
        scale_input=folder.flag("scale_input"),
        target_embedding=folder.flag("target_embedding"),
        target_head=folder.flag("target_head"),
    )
