"""A trained drafter as a folder: config.json, model.safetensors (fp16 or int8 codes), train.json: how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from forerun.core import files
from forerun.core.errors import ForerunError
from forerun.drafting.networks import folder as network_folder

RECORD, METRICS = "train.json", "metrics.csv"


def write(
    folder: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    ids: Tensor,
    record: Mapping[str, object],
    history: Sequence[Mapping[str, float]],
    *,
    int8: bool = False,
) -> None:
    """Write all, each file whole or not at all, the configuration last. Raises ForerunError if there is no room."""
    tensors = {name: weight.half() for name, weight in weights.items()}
    if int8:
        tensors = network_folder.rounded(tensors)
    try:
        write_record(folder, record, history)
        network_folder.write(folder, config, {**tensors, "draft_ids": ids})
    except OSError as error:
        raise ForerunError(f"{folder} cannot be written: {error}") from error


def write_record(
    folder: Path, record: Mapping[str, object], history: Sequence[Mapping[str, float]]
) -> None:
    """How it was made, and a line a step. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / METRICS, _csv(history).encode())
    files.replace(folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")


def _csv(history: Sequence[Mapping[str, float]]) -> str:
    """A line a step; columns that a step has not are empty."""
    columns = list(dict.fromkeys(name for line in history for name in line))
    lines = [",".join(columns)]
    lines += [
        ",".join(f"{line[name]:.6g}" if name in line else "" for name in columns)
        for line in history
    ]
    return "\n".join(lines) + "\n"
