"""Adapters of the peft library (LoRA and others) in a folder: small weights that change those of a model.

transformers applies one that it finds beside a model, and then another model answers. Here none is applied.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from forerun.core.errors import LoadError
from forerun.system.opened import read_json
from forerun.weights.safetensors_file import read_tensors

_log = logging.getLogger(__name__)
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FILES = (_WEIGHTS, "adapter_model.bin")
_MERGE = "merge it into the model with peft's merge_and_unload() and give the folder of that"
_FIRST, _SECOND = re.compile(r"\.lora_(embedding_)?A\b"), re.compile(r"\.lora_(embedding_)?B\b")
"""The two matrices of LoRA, whose product is added to a weight (arXiv 2106.09685)."""


def check_adapter(folder: Path) -> None:
    """Raise LoadError for a folder that is an adapter, or has one beside the model that would change its answers."""
    if not any((folder / name).is_file() for name in (_CONFIG, *_FILES)):
        return
    settings = read_json(folder / _CONFIG)
    kind = settings.get("peft_type") or "LoRA"
    base = settings.get("base_model_name_or_path") or "a model that it does not name"
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} is an adapter ({kind}) of {base}, no model: {_MERGE}")
    if (folder / _CONFIG).is_file() and _changes(folder):
        raise LoadError(
            f"{folder} has an adapter ({kind}) beside the model, which would change its answers and is not "
            f"applied: {_MERGE}, or move {_CONFIG} away to run the model without it"
        )


def _changes(folder: Path) -> bool:
    """Tell whether applying it would change a weight: not where there is nothing to apply, or LoRA adds zeros."""
    if not any((folder / name).is_file() for name in _FILES):
        _log.warning("%s has an %s without weights: nothing is applied", folder, _CONFIG)
        return False
    if not (folder / _WEIGHTS).is_file():
        return True
    tensors = read_tensors(folder / _WEIGHTS)
    added = [tensors[name] for name in tensors if _SECOND.search(name)]
    is_lora = len(added) + sum(map(bool, map(_FIRST.search, tensors))) == len(tensors)
    return not (is_lora and added) or any(tensor.data.any() for tensor in added)
