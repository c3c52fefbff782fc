"""Quantizing a model block by block, in bounded memory, into a Hugging Face folder.

Beside one block only the hidden states of the calibration text are held. They and the finished blocks lie in
`<folder>.partial`, so that a job that was killed goes on after its last block; at the end the folder gets its name.
Inputs of a block come from the unrounded blocks before it, as in AWQ; a held-out text runs through the rounded ones
too, which gives the perplexity before and after in the same pass.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from forerun.core import files
from forerun.core.errors import ConfigError, LoadError
from forerun.formats.checkpoint import Checkpoint
from forerun.formats.coded import Parts
from forerun.formats.hf_folder import write_beside
from forerun.formats.hf_layouts import Layout, config_of, tensors_of
from forerun.nn.awq_block import MATRICES, clipped, scale
from forerun.nn.config import ModelConfig, weight_shapes
from forerun.nn.hf_export import Matrix, config_json, named
from forerun.nn.loader import read_config, stored_weights
from forerun.nn.outside import Outside
from forerun.nn.whole_block import READERS, Site, WholeBlock
from forerun.quant.awq import Inputs
from forerun.quant.grid import Coded, Grid

Method = Literal["rtn", "awq"]
METHODS: tuple[Method, ...] = ("rtn", "awq")
SITE_OF: Mapping[str, Site] = {name: site for site, names in READERS.items() for name in names}
_STATE = "state.safetensors"
_ORIGIN = "origin.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to round: the method, the grid, and the layout that is written."""

    method: Method
    grid: Grid
    layout: Layout


@dataclass
class BlockStates:
    """Hidden states of the calibration text (S, T, D), and of the held-out one before and after rounding (H, T, D)."""

    calibration: Tensor
    held: Tensor
    rounded: Tensor


@dataclass
class QuantizeJob:
    """One model, one recipe. `calibration` and `held` are texts of the same number of tokens each, perhaps none.

    Raises ConfigError if the folder exists or an unfinished one is another job's, LoadError for the model.
    """

    checkpoint: Checkpoint
    recipe: Recipe
    calibration: Sequence[Sequence[int]]
    held: Sequence[Sequence[int]]
    folder: Path
    origin: Mapping[str, object]
    """What the result depends on, as JSON."""
    errors: dict[str, float] = field(default_factory=dict)
    """Of each matrix: the error of its outputs (of its weights, without calibration), relative to their size."""

    def __post_init__(self) -> None:
        self.config, self.arch = read_config(self.checkpoint)
        if self.recipe.method == "awq" and not self.calibration:
            raise ConfigError("method awq needs a text to calibrate on: give --calib FILE")
        if self.folder.exists():
            raise ConfigError(f"{self.folder} exists: choose another folder, or delete it")
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.outside = Outside(self.checkpoint, self.arch, self.config)
        config_json(self.checkpoint, self.config)  # raises now, not at the end

    def run(self) -> Iterator[int]:
        """Round all blocks; yields how many are done, those of an earlier start included. Raises OSError."""
        self._claim()
        done, hidden = self._resume()
        yield done
        for layer in range(done, self.config.num_layers):
            weights = self._weights(layer)
            self._write(layer, self._round(layer, weights, hidden))
            self._save_state(layer + 1, hidden)
            yield layer + 1

    def finish(self) -> dict[str, float]:
        """Write what is left and give the folder its name; perplexities, if there is a held-out text, and bytes."""
        _, hidden = self._resume()
        figures = {}
        if len(self.held):
            targets = torch.tensor(self.held)
            for name, states in (("ppl_before", hidden.held), ("ppl_after", hidden.rounded)):
                figures[name] = math.exp(self.outside.loss(states, targets))
        self._save(self._file(-1), {n: torch.from_numpy(a) for n, a in self.outside.tensors()})
        nbytes = self._write_folder()
        for name in (_STATE, _ORIGIN):
            (self.partial / name).unlink()
        os.replace(self.partial, self.folder)
        return figures | {"nbytes": nbytes}

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
        files.replace(path, text.encode())

    def _resume(self) -> tuple[int, BlockStates]:
        path = self.partial / _STATE
        if not path.is_file():
            states = [self.outside.embed(texts) for texts in (self.calibration, self.held)]
            return 0, BlockStates(states[0], states[1], states[1].clone())
        with safetensors.safe_open(path, framework="pt") as file:
            known = file.metadata()
            self.errors = json.loads(known["errors"])
            return int(known["done"]), BlockStates(
                *(file.get_tensor(n) for n in ("calibration", "held", "rounded"))
            )

    def _save_state(self, done: int, hidden: BlockStates) -> None:
        known = {"done": str(done), "errors": json.dumps(self.errors)}
        tensors = {name: getattr(hidden, name) for name in ("calibration", "held", "rounded")}
        self._save(_STATE, tensors, known)

    def _weights(self, layer: int) -> dict[str, Tensor]:
        """A block's weights and biases, fp32, by their names without the layer."""
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

    def _round(
        self, layer: int, weights: dict[str, Tensor], hidden: BlockStates
    ) -> dict[str, Tensor | Coded]:
        """The block's weights for the folder; the hidden states become its outputs."""
        inputs = advance(WholeBlock(self.config, weights), hidden.calibration)
        advance(WholeBlock(self.config, weights), hidden.held, with_inputs=False)
        if self.recipe.method == "awq":
            weights, inputs = scale(self.config, weights, inputs, self.recipe.grid)
        written: dict[str, Tensor | Coded] = dict(weights)
        for name in MATRICES:
            if name in weights:
                seen = inputs.get(SITE_OF[name])
                coded, error = self._round_matrix(name, weights.pop(name), seen)
                self.errors[f"{layer}.{name}"] = error
                written[name] = coded
        if len(hidden.rounded):
            values = {n: w.values() if isinstance(w, Coded) else w for n, w in written.items()}
            advance(WholeBlock(self.config, values), hidden.rounded, with_inputs=False)
        return written

    def _round_matrix(
        self, name: str, weight: Tensor, inputs: Inputs | None
    ) -> tuple[Coded, float]:
        grid = self.recipe.grid
        if inputs is None:
            coded = grid.round(weight)
            difference = (coded.values() - weight).square().sum()
            return coded, float(difference / weight.square().sum().clamp(min=1e-30))
        is_clipped = self.recipe.method == "awq"
        coded = grid.round(clipped(name, weight, inputs, grid) if is_clipped else weight)
        return coded, inputs.error(coded.values() - weight) / max(inputs.error(weight), 1e-30)

    def _write(self, layer: int, weights: Mapping[str, Tensor | Coded]) -> None:
        arrays = {name: _array(weight) for name, weight in weights.items()}
        tensors: dict[str, np.ndarray] = {}
        for name, matrix in named(self.arch, self.config, layer, arrays).items():
            if isinstance(matrix, Parts):
                tensors |= tensors_of(name, matrix, self.recipe.grid.bits, self.recipe.layout)
            else:
                tensors[name] = matrix
        self._save(self._file(layer), {n: torch.from_numpy(a) for n, a in tensors.items()})

    def _file(self, layer: int) -> str:
        count = self.config.num_layers + 1
        return f"model-{layer + 2:05}-of-{count:05}.safetensors"

    def _save(
        self, name: str, tensors: Mapping[str, Tensor], known: Mapping[str, str] | None = None
    ) -> None:
        whole = {n: tensor.contiguous() for n, tensor in tensors.items()}
        data = safetensors.torch.save(whole, {"format": "pt"} | dict(known or {}))
        files.replace(self.partial / name, data)

    def _write_folder(self) -> int:
        """The index, config.json and the tokenizer's files; bytes of all weights."""
        weight_map: dict[str, str] = {}
        nbytes = 0
        for layer in range(-1, self.config.num_layers):
            path = self.partial / self._file(layer)
            with safetensors.safe_open(path, framework="np") as file:
                weight_map |= dict.fromkeys(file.keys(), path.name)
            nbytes += path.stat().st_size
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        head = [] if self.config.tied_head else [self.arch.source("head", self.config, "hf").name]
        grid = self.recipe.grid
        config = config_json(self.checkpoint, self.config)
        config["quantization_config"] = config_of(self.recipe.layout, grid.bits, grid.group, head)
        write_beside(self.checkpoint, self.partial)
        for name, value in (("model.safetensors.index.json", index), ("config.json", config)):
            files.replace(self.partial / name, (json.dumps(value, indent=2) + "\n").encode())
        return nbytes

    def discard(self) -> None:
        """Delete what is unfinished."""
        shutil.rmtree(self.partial, ignore_errors=True)


def advance(block: WholeBlock, states: Tensor, *, with_inputs: bool = True) -> dict[Site, Inputs]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; statistics of what its matrices read."""
    sums: dict[Site, tuple[Tensor, Tensor]] = {}
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items() if with_inputs else ():
            gram, size = x.T @ x, x.abs().sum(0)
            before = sums.get(site)
            sums[site] = (gram, size) if before is None else (before[0] + gram, before[1] + size)
    count = states.shape[0] * states.shape[1]
    return {site: Inputs(size / count, gram / count) for site, (gram, size) in sums.items()}


def _array(weight: Tensor | Coded) -> Matrix:
    """Codes as they are, other numbers as fp16. Raises LoadError for what fp16 cannot hold."""
    if isinstance(weight, Coded):
        return Parts(weight.codes.numpy(), weight.scales.numpy(), weight.zeros.numpy())
    return as_fp16(weight)


def as_fp16(weight: Tensor) -> np.ndarray:
    """Numbers as fp16. Raises LoadError if they are too large."""
    halves = weight.to(torch.float16)
    if not torch.isfinite(halves).all():
        raise LoadError("a norm or bias is too large for fp16, which the layouts ask for")
    return halves.numpy()


def peak_nbytes(config: ModelConfig, method: Method, num_tokens: int) -> int:
    """About how much memory a job takes at most, beside what the process has at its start."""
    shapes = weight_shapes(config)
    block = sum(math.prod(s) for n, s in shapes.items() if n.startswith("layers.0."))
    largest = max(math.prod(s) for n, s in shapes.items() if n.startswith("layers.0."))
    width, inner = config.hidden_size, config.intermediate_size
    states = 2 * 4 * num_tokens * width  # and a copy while they are written
    grams = 2 * 4 * (2 * width**2 + (config.num_heads * config.head_dim) ** 2 + inner**2)
    searching = 4 * (2 * block + 8 * largest) + grams if method == "awq" else 4 * 3 * block
    outside = 3 * 2 * math.prod(shapes["embed"])
    return states + max(searching, outside)
