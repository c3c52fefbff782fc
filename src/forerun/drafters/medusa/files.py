"""Medusa's heads in files: ours, and the published ones (FasterDecoding), as safetensors.

`{k}.{j}.linear.weight` and `.bias` are block j of head k, `{k}.{n}.weight` the rows of head k after its n blocks; names
may begin with `medusa_head.` or `medusa_heads.`. With `target_head`, ours, the rows are the target's, of the tokens
`draft_ids`.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.drafters.medusa.drafting import MedusaWeights
from forerun.drafting.base import Target
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.networks.best_first import MAX_STEPS
from forerun.drafting.networks.folder import UNTRAINED, Folder

MODEL_TYPE = "medusa"
NUM_HEADS = 3
"""Of an untrained network."""
_PREFIX = re.compile(r"^(?:medusa_heads?\.)")


def check_folder(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model == UNTRAINED:
        return
    path = Path(model).expanduser()
    config = network_folder.config_of(path)
    if config.get("model_type") != MODEL_TYPE and "medusa_num_heads" not in config:
        raise LoadError(f"{path} holds model_type {config.get('model_type')!r}, which is no Medusa")


def read(model: str, target: Target) -> MedusaWeights:
    """The heads for a target. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    folder = network_folder.read(Path(model).expanduser(), target)
    num_heads, num_layers = (
        folder.number("medusa_num_heads"),
        folder.number("medusa_num_layers", default=1),
    )
    if num_heads > MAX_STEPS or num_layers > MAX_STEPS:
        raise LoadError(f"{folder.path}: at most {MAX_STEPS} heads of {MAX_STEPS} blocks")
    names = {_PREFIX.sub("", name): name for name in folder.tensors}
    tokens = None
    if (name := names.pop("draft_ids", None)) is not None:
        tokens = network_folder.token_ids(folder, name, target.model.config.vocab_size)
    wanted = _names(num_heads, num_layers, has_head=not folder.flag("target_head"))
    found = {ours: _tensor(folder, names, theirs, target, tokens) for ours, theirs in wanted}
    if extra := names.keys() - {theirs for _, theirs in wanted}:
        raise LoadError(f"{folder.path}: tensor '{names[min(extra)]}' is none of such a network")
    temperatures = network_folder.temperatures(folder)
    return MedusaWeights(num_heads, num_layers, found, tokens, temperatures)


def _names(num_heads: int, num_layers: int, *, has_head: bool) -> list[tuple[str, str]]:
    """Our names, and those in files."""
    found = []
    for k in range(num_heads):
        for j in range(num_layers):
            found += [(f"block.{k}.{j}", f"{k}.{j}.linear.weight")]
            found += [(f"bias.{k}.{j}", f"{k}.{j}.linear.bias")]
        if has_head:
            found += [(f"head.{k}", f"{k}.{num_layers}.weight")]
    return found


def _tensor(
    folder: Folder, names: dict[str, str], theirs: str, target: Target, tokens: Tensor | None
) -> Tensor:
    """Raises LoadError if it is not there, or has not the target's sizes."""
    shape = target.model.config
    width, rows = shape.hidden_size, shape.vocab_size if tokens is None else len(tokens)
    size: tuple[int, ...] = (width,)
    if theirs.endswith(".weight"):
        size = (width if ".linear." in theirs else rows, width)
    name = names.get(theirs, theirs)
    folder.need({name: size})
    return folder.tensors[name].float()


def untrained(target: Target) -> MedusaWeights:
    """Random weights, one block a head."""
    shape, generator = target.model.config, torch.Generator().manual_seed(0)
    width = shape.hidden_size
    tensors = dict[str, Tensor]()
    for k in range(NUM_HEADS):
        tensors[f"block.{k}.0"] = torch.randn(width, width, generator=generator) / width**0.5
        tensors[f"bias.{k}.0"] = torch.zeros(width)
    tokens = network_folder.untrained_tokens(shape.vocab_size)
    return MedusaWeights(NUM_HEADS, 1, tensors, tokens)
