"""The Hugging Face folder that a quantizing job fills block by block, under another name until it is whole.

What is unfinished lies in `<folder>.partial`, with a note of what it is made of, so that a job that was killed goes on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core import files
from forerun.core.errors import ConfigError, LoadError
from forerun.lab.quantize.hf_export import Matrix, config_json, named
from forerun.lab.quantize.outside import Outside, as_fp16
from forerun.model.loader import read_config, stored_weights
from forerun.weights import tensor_file
from forerun.weights.checkpoint import Checkpoint
from forerun.weights.coded import Parts
from forerun.weights.flat import FlatParts
from forerun.weights.grid import Coded
from forerun.weights.hf_folder import write_beside
from forerun.weights.hf_layouts import flat_tensors
from forerun.weights.tensor_file import Chunks

_ORIGIN, _STATE = "origin.json", "state.safetensors"


@dataclass
class QuantizeFolder:
    """One model. `calibration` and `held` are texts of the same number of tokens each, perhaps none.

    Raises ConfigError if the folder exists or an unfinished one is another job's, LoadError for the model.
    """

    checkpoint: Checkpoint
    calibration: Sequence[Sequence[int]]
    held: Sequence[Sequence[int]]
    folder: Path
    origin: Mapping[str, object]
    """What the result depends on, as JSON."""

    def __post_init__(self) -> None:
        self.on_matrix: Callable[[float], object] = lambda share: None
        """Called as matrices of a block are rounded, with the share that is done: the longest silence is one matrix."""
        self.config, self.arch = read_config(self.checkpoint)
        if self.folder.exists():
            raise ConfigError(f"{self.folder} exists: choose another folder, or delete it")
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.outside = Outside(self.checkpoint, self.arch, self.config)
        config_json(self.checkpoint, self.config)  # raises now, not at the end

    def claim(self) -> None:
        """Make the unfinished folder, or take up that of an earlier start. Raises ConfigError."""
        path = self.partial / _ORIGIN
        text = json.dumps(self.origin, sort_keys=True)
        if path.is_file():
            if path.read_text(encoding="utf-8") != text:
                raise ConfigError(
                    f"{self.partial} is an unfinished job with other options or another model: "
                    "delete it, or choose another folder"
                )
            return
        self.partial.mkdir(parents=True, exist_ok=True)
        files.replace(path, text.encode())

    def weights(self, layer: int) -> dict[str, Tensor]:
        """A block's weights and biases, fp32, by their names without the layer. Raises LoadError."""
        start = f"layers.{layer}."
        stored = stored_weights(self.checkpoint, self.arch, self.config, start)
        weights = {}
        for name, tensor in stored:
            values = tensor.dequantize()
            if not torch.isfinite(values).all():
                raise LoadError(f"tensor '{tensor.name}' holds NaN or infinity")
            weights[name.removeprefix(start)] = values
            tensor.release()
        return weights

    def write_block(
        self,
        layer: int,
        weights: Mapping[str, Tensor | Coded | FlatParts],
        layout: Callable[[str, Parts], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """Write a block's file; `layout` gives the tensors of codes in groups."""
        arrays = {name: _array(weight) for name, weight in weights.items()}
        tensors: dict[str, np.ndarray] = {}
        for name, matrix in named(self.arch, self.config, layer, arrays).items():
            if isinstance(matrix, Parts):
                assert layout is not None
                tensors |= layout(name, matrix)
            elif isinstance(matrix, FlatParts):
                tensors |= flat_tensors(name, matrix)
            else:
                tensors[name] = matrix
        self.save(self._file(layer), tensors)

    def save_outside(self) -> None:
        """Write the weights outside all blocks."""
        self.save(self._file(-1), dict(self.outside.tensors()))

    def save(
        self,
        name: str,
        tensors: Mapping[str, np.ndarray | Chunks],
        known: Mapping[str, str] | None = None,
    ) -> None:
        """Write a file of tensors in place of the one of that name."""
        tensor_file.write(self.partial / name, tensors, known)

    def save_state(self, known: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
        """Write how far the job is: `known` as JSON, and hidden states."""
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self.save(_STATE, arrays, {name: json.dumps(value) for name, value in known.items()})

    def load_state(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What was saved last, None before."""
        path = self.partial / _STATE
        if not path.is_file():
            return None
        with safetensors.safe_open(path, framework="pt") as file:
            known = {n: json.loads(text) for n, text in file.metadata().items() if n != "format"}
            return known, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def write_folder(self, quantization: Callable[[list[str]], Mapping[str, object]]) -> int:
        """The index, config.json and the tokenizer's files; bytes of all weights.

        `quantization` gives the quantization config, for the linear layers that are left alone.
        """
        weight_map: dict[str, str] = {}
        nbytes = 0
        for layer in range(-1, self.config.num_layers):
            path = self.partial / self._file(layer)
            with safetensors.safe_open(path, framework="np") as file:
                weight_map |= dict.fromkeys(file.keys(), path.name)
            nbytes += path.stat().st_size
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        head = [] if self.config.tied_head else [self.arch.source("head", self.config, "hf").name]
        config = config_json(self.checkpoint, self.config)
        config["quantization_config"] = dict(quantization(head))
        write_beside(self.checkpoint, self.partial)
        for name, value in (("model.safetensors.index.json", index), ("config.json", config)):
            files.replace(self.partial / name, (json.dumps(value, indent=2) + "\n").encode())
        return nbytes

    def rename(self) -> None:
        """Give the folder its name."""
        for name in (_STATE, _ORIGIN):
            (self.partial / name).unlink()
        os.replace(self.partial, self.folder)

    def discard(self) -> None:
        """Delete what is unfinished."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def _file(self, layer: int) -> str:
        count = self.config.num_layers + 1
        return f"model-{layer + 2:05}-of-{count:05}.safetensors"


def _array(weight: Tensor | Coded | FlatParts) -> Matrix:
    """Codes as they are, other numbers as fp16. Raises LoadError for what fp16 cannot hold."""
    if isinstance(weight, FlatParts):
        return weight
    if isinstance(weight, Coded):
        return Parts(weight.codes.numpy(), weight.scales.numpy(), weight.zeros.numpy())
    return as_fp16(weight, "a norm or bias is too large for fp16, which the layouts ask for")
