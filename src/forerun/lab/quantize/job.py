"""Quantizing a model block by block, in bounded memory, into a Hugging Face folder: what all methods share.

Beside one block only hidden states of texts are held. They and the finished blocks lie in `<folder>.partial`, with a
note of what they are made of, so that a job that was killed goes on after its last step; at the end the folder gets
its name. Inputs of a block come from the unrounded blocks before it, as in AWQ; a held-out text runs through the
rounded ones too, which gives the perplexity before and after in the same pass, and how far predictions moved.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import safetensors
import torch
from torch import Tensor

from forerun.core.errors import ConfigError, LoadError
from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.block import matrices_of, need_supported
from forerun.lab.quantize.hf_export import (
    config_json,
    named,
    need_apart,
    source_of,
    write_other_files,
)
from forerun.lab.quantize.hf_layouts import flat_tensors
from forerun.lab.quantize.outside import Outside, as_fp16, as_fp16_of
from forerun.model.loader import read_config, stored_weights
from forerun.model.shapes import weight_shapes
from forerun.system import files
from forerun.system.device import return_freed
from forerun.weights.checkpoint import Checkpoint
from forerun.weights.codes import Codes

_ORIGIN, _STATE = "origin.json", "state.safetensors"
_CANDIDATES = "candidates-*.safetensors"
_TOO_LARGE = "a norm or bias is too large for fp16, which the layouts ask for"

States = dict[str, Tensor]
"""Hidden states (S, T, D) by name: of the calibration text, of the held-out one before and after rounding, ..."""


@dataclass
class QuantizeJob(ABC):
    """One model. `calibration` and `held_out` are texts of the same number of tokens each, perhaps none.

    Raises ConfigError if the folder exists or an unfinished one is another job's, LoadError for the model.
    """

    checkpoint: Checkpoint
    calibration: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]
    folder: Path
    origin: Mapping[str, object]
    """What the result depends on, as JSON."""
    device: str = "cpu"
    """Where blocks are computed and rounded; texts' embeddings and the head stay on the host."""
    errors: dict[str, float] = field(default_factory=dict)
    """Of each matrix, or site and width: the error of its outputs, relative to their size."""
    divergences: dict[str, float] = field(default_factory=dict)
    """Of each site and width, that site alone rounded so, in nats, where a method measures it."""

    rare: dict[str, int] = field(default_factory=dict)
    """Of each layer, how many of its experts too few rows chose: they are rounded to nearest."""

    passes: ClassVar[int] = 1
    """How often `run` visits each block."""
    rounds_outside: ClassVar[bool] = False
    """Whether embedding and head are written as rows of 8 bits, not in fp16."""

    @abstractmethod
    def peak_nbytes(self) -> int:
        """Return about how much memory it takes at most, beside what the process has before."""

    @abstractmethod
    def begin(self, calibration: Tensor, held_out: Tensor) -> States:
        """Return the states to begin with, `held` and `rounded` among them, of embedded texts (S, T, D)."""

    @abstractmethod
    def step(self, step: int, states: States) -> None:
        """Round a block, and advance the states through it."""

    def saved(self, done: int, states: States) -> States:
        """Return what a start that goes on after `done` steps needs."""
        return states

    @abstractmethod
    def quantization(self, left_alone: list[str]) -> Mapping[str, object]:
        """Return the quantization config, for the linear layers that are left alone."""

    def figures(self) -> dict[str, float]:
        """Return the method's own figures of its result."""
        return {}

    def __post_init__(self) -> None:
        self.on_matrix: Callable[[float], object] = lambda share: None
        """Called as matrices of a block are rounded, with the share that is done: the longest silence is one matrix."""
        self.config, self.arch = read_config(self.checkpoint)
        need_supported(self.config, "quantization")
        need_apart(self.arch, self.config)
        if self.folder.exists():
            raise ConfigError(f"{self.folder} exists: choose another folder, or delete it")
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.outside = Outside(self.checkpoint, self.arch, self.config)
        self._names = self.checkpoint.names() if self.checkpoint.kind == "hf" else ()
        config_json(self.checkpoint, self.config)  # raises now, not at the end
        self.num_steps = self.passes * self.config.num_layers

    def run(self) -> Iterator[int]:
        """Round all blocks; yields how many steps are done, those of an earlier start included. Raises OSError."""
        self._claim()
        done, states = self._resume()
        yield done
        for step in range(done, self.num_steps):
            self.step(step, states)
            known = {"done": step + 1, "errors": self.errors, "divergences": self.divergences}
            known["rare"] = self.rare
            saved = self.saved(step + 1, states).items()
            arrays = {name: tensor.cpu().numpy() for name, tensor in saved}
            noted = {name: json.dumps(value) for name, value in known.items()}
            tensor_file.write(self.partial / _STATE, arrays, noted)
            return_freed()
            yield step + 1

    def finish(self) -> dict[str, float]:
        """Write what is left and give the folder its name; figures of the held-out text, if there is one, and bytes."""
        figures = self._figures_of_held() if len(self.held_out) else {}
        figures |= self.figures()
        outside = self.outside.tensors(is_rounded=self.rounds_outside)
        tensor_file.write(self.partial / self._file(-1), dict(outside))
        figures["nbytes"] = self._write_folder()
        count = sum(map(math.prod, weight_shapes(self.config).values()))
        figures["fp16_over_folder"] = 2 * count / figures["nbytes"]
        for path in (_STATE, _ORIGIN, *(path.name for path in self.partial.glob(_CANDIDATES))):
            (self.partial / path).unlink()
        os.replace(self.partial, self.folder)
        return figures

    def _figures_of_held(self) -> dict[str, float]:
        """Return the held-out text's perplexities before and after, and how far predictions moved. Frees its states."""
        _, states = self._resume()
        both = torch.stack([states.pop("held"), states.pop("rounded")]).cpu()
        del states
        targets = torch.tensor(self.held_out)
        is_rounded = self.rounds_outside
        before = math.exp(self.outside.loss(both[0], targets))
        after = math.exp(self.outside.loss(both[1], targets, is_rounded=is_rounded))
        moved = float(self.outside.divergence(both, is_rounded=is_rounded))
        return {"ppl_before": before, "ppl_after": after, "divergence": moved}

    def _resume(self) -> tuple[int, States]:
        """Return how many steps are done, and the states after them."""
        path = self.partial / _STATE
        if not path.is_file():
            texts = map(self.outside.embed, (self.calibration, self.held_out))
            return 0, self.begin(*(each.to(self.device) for each in texts))
        with safetensors.safe_open(path, framework="pt") as file:
            known = {n: json.loads(text) for n, text in file.metadata().items() if n != "format"}
            names = file.keys()
            states = {name: file.get_tensor(name).to(self.device) for name in names}
        self.errors, self.divergences = known["errors"], known["divergences"]
        self.rare = known["rare"]
        return known["done"], states

    def _claim(self) -> None:
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
        files.replace(path, text.encode(), mode=files.PUBLIC)

    def weights(self, layer: int) -> dict[str, Tensor]:
        """Read a block's weights and biases, fp32, by their names without the layer. Raises LoadError."""
        start = f"layers.{layer}."
        stored = stored_weights(self.checkpoint, self.arch, self.config, start)
        weights = {}
        for name, tensor in stored:
            values = self.on_device(tensor.dequantize())
            if not torch.isfinite(values).all():
                raise LoadError(f"tensor '{tensor.name}' holds NaN or infinity")
            weights[name.removeprefix(start)] = values
            tensor.release()
        return weights

    def on_device(self, values: np.ndarray) -> Tensor:
        """Return numbers of the host where blocks are computed."""
        return torch.from_numpy(values).to(self.device)

    def write_block(
        self,
        layer: int,
        weights: Mapping[str, Tensor | Codes],
        layout: Callable[[str, Codes], Mapping[str, np.ndarray]] | None = None,
        changed: Container[str] = (),
    ) -> None:
        """Write a block's file; `layout` gives the tensors of codes in groups.

        Of a folder what is neither codes nor `changed` is written as it is stored.
        Raises LoadError for numbers that fp16 cannot hold.
        """
        tensors: dict[str, np.ndarray] = {}
        arrays: dict[str, np.ndarray | Codes] = {}
        for name, weight in weights.items():
            if isinstance(weight, Codes):
                arrays[name] = weight
            elif self._names and name not in changed:
                tensors |= self._as_stored(layer, name)
            else:
                arrays[name] = as_fp16(weight, _TOO_LARGE)
        for name, matrix in named(self.arch, self.config, layer, arrays, self._names).items():
            if not isinstance(matrix, Codes):
                tensors[name] = matrix
            elif matrix.flat is not None:
                tensors |= flat_tensors(name, matrix)
            else:
                assert layout is not None
                tensors |= layout(name, matrix)
        tensor_file.write(self.partial / self._file(layer), tensors)

    def _as_stored(self, layer: int, name: str) -> dict[str, np.ndarray]:
        """Return the folder's tensor that has a weight or a bias, in fp16."""
        short = name.removesuffix(".bias")
        source = source_of(self.arch, self.config, short, layer, self._names)
        (tensor,) = source.tensors(str(layer), is_bias=short != name)
        return {tensor: as_fp16_of(self.checkpoint.tensor(tensor))}

    def _write_folder(self) -> int:
        """Write the index, config.json and the tokenizer's files; bytes of all weights."""
        weight_map: dict[str, str] = {}
        nbytes = 0
        for layer in range(-1, self.config.num_layers):
            path = self.partial / self._file(layer)
            with safetensors.safe_open(path, framework="np") as file:
                weight_map |= dict.fromkeys(file.keys(), path.name)
            nbytes += path.stat().st_size
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        head = [] if self.config.tied_head else [self.arch.source("head", self.config, "hf").name]
        for layer in range(self.config.num_layers):
            head += self._left_alone(layer)
        config = config_json(self.checkpoint, self.config)
        config["quantization_config"] = dict(self.quantization(head))
        write_other_files(self.checkpoint, self.partial)
        for name, value in (("model.safetensors.index.json", index), ("config.json", config)):
            text = json.dumps(value, indent=2) + "\n"
            files.replace(self.partial / name, text.encode(), mode=files.PUBLIC)
        return nbytes

    def _left_alone(self, layer: int) -> list[str]:
        """Return the linear layers of a layer that are not rounded."""
        start, is_rounded = f"layers.{layer}.", matrices_of(self.config, layer)
        shapes = {
            name: shape
            for name, shape in weight_shapes(self.config).items()
            if name.startswith(start)
        }
        names = [n.removeprefix(start) for n, shape in shapes.items() if len(shape) == 2]
        sources = [
            source_of(self.arch, self.config, n, layer, self._names).name
            for n in names
            if n not in is_rounded
        ]
        return [name.format(i=layer) for name in dict.fromkeys(sources)]

    def _file(self, layer: int) -> str:
        count = self.config.num_layers + 1
        return f"model-{layer + 2:05}-of-{count:05}.safetensors"


def wants_text(method: str, calibration: Sequence[object]) -> None:
    """Raise ConfigError if there is no text."""
    if not calibration:
        raise ConfigError(f"method {method} needs a text to calibrate on: give --calib FILE")
