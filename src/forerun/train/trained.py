"""A trained drafter as a folder: config.json, model.safetensors (fp16), and train.json, which says how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
from torch import Tensor

from forerun.core import files
from forerun.core.errors import ForerunError

CONFIG, TENSORS, RECORD = "config.json", "model.safetensors", "train.json"
METRICS = "metrics.csv"


def write(
    folder: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    ids: Tensor,
    record: Mapping[str, object],
    history: Sequence[Mapping[str, float]],
) -> None:
    """Write all, each file whole or not at all, the configuration last. Raises ForerunError if there is no room."""
    tensors = {name: weight.detach().half().contiguous() for name, weight in weights.items()}
    tensors["draft_ids"] = ids.contiguous()
    contents = {
        TENSORS: safetensors.torch.save(tensors, {"format": "pt"}),
        METRICS: _csv(history).encode(),
        RECORD: _json(record),
        CONFIG: _json(config),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            files.replace(folder / name, content)
    except OSError as error:
        raise ForerunError(f"{folder} cannot be written: {error}") from error


def _csv(history: Sequence[Mapping[str, float]]) -> str:
    """A line a step; columns that a step has not are empty."""
    columns = list(dict.fromkeys(name for line in history for name in line))
    lines = [",".join(columns)]
    lines += [
        ",".join(f"{line[name]:.6g}" if name in line else "" for name in columns)
        for line in history
    ]
    return "\n".join(lines) + "\n"


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
