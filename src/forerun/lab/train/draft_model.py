"""A draft model cut out of its target, or of a sibling with the same vocabulary, and aligned with the target.

A few layers, between the embedding and head that they had, are trained on what the target says after its own replies:
sequence-level distillation with the target's probabilities (FastDraft, arXiv 2411.11055). How many follows from what a
step may cost: the weights it reads as a share of a pass, its head cut to the draft vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.drafters.base.networks.folder import write as write_folder
from forerun.lab.quantize.block import WholeBlock, need_plain
from forerun.lab.quantize.hf_export import config_json, named, write_other_files
from forerun.lab.torch import reference as ops
from forerun.lab.train import trim
from forerun.lab.train.batches import TrainBatch
from forerun.lab.train.learners import Learner
from forerun.llm import LLM
from forerun.model.arch.base.mapping import Arch
from forerun.model.config import ModelConfig
from forerun.model.loader import read_config, stored_weights
from forerun.model.model import Model
from forerun.weights.checkpoint import Checkpoint

MODEL = "model"
"""The folder of the whole draft, below the one that names its tokens."""
CONTEXT, REPEATS = 128, 31
QUANT: Literal["int8"] = "int8"
"""It is measured in."""

NAMES = ("q", "k", "v", "o", "gate", "up", "down", "attn_norm", "mlp_norm")
"""Of a layer, in the order in which an optimizer's checkpoint has them."""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Which layers of the source, and what a step of them costs."""

    layers: tuple[int, ...]
    cost: float
    """Weights read in a step, as a share of a pass of the target."""


def shape_for(
    source: ModelConfig, target: ModelConfig, draft_vocab: int, num_layers: int, max_cost: float
) -> DraftShape:
    """Choose `num_layers` layers of `source`, 0: as many as cost at most `max_cost`; the first and last are among them.

    Raises ConfigError if the source has not Llama's form, or not even one layer is cheap enough.
    """
    need_plain(source, "a draft cut out")
    if source.family not in ("llama", "qwen2", "mistral") or source.rope is None:
        raise ConfigError(f"a draft is cut from models of Llama's form, this is {source.family}")
    if source.rope.factors is not None or source.rope.rotary_dim != source.head_dim:
        raise ConfigError("a draft cannot be cut from a model with rope scaling")
    most = source.num_layers - (source is target)
    costs = [
        trim.cost(replace(source, num_layers=n), target, min(draft_vocab, source.vocab_size))
        for n in range(1, most + 1)
    ]
    if not 0 <= num_layers <= most:
        raise ConfigError(f"--layers must be 1 to {most}, got {num_layers}")
    wanted = num_layers or sum(cost <= max_cost for cost in costs)
    if not wanted:
        raise ConfigError(
            f"--max-cost {max_cost}: one layer and a head of {draft_vocab} tokens cost {costs[0]:.3f} of a pass"
        )
    last = source.num_layers - 1
    layers = tuple(round(i * last / max(wanted - 1, 1)) for i in range(wanted))
    return DraftShape(layers, costs[wanted - 1])


def weights_of(checkpoint: Checkpoint, layers: Sequence[int]) -> dict[str, Tensor]:
    """Read the layers' weights and the last norm, fp32."""
    shape, arch = read_config(checkpoint)
    weights = dict[str, Tensor]()
    for part in ("norm", *(f"layers.{i}." for i in layers)):
        for name, stored in stored_weights(checkpoint, arch, shape, part):
            weights[name] = torch.from_numpy(stored.dequantize()).float()
            stored.release()
    return weights


class DraftDecoder(nn.Module):
    """What is trained: layers and the last norm. Embedding and head are the target's and stay."""

    def __init__(
        self, config: ModelConfig, layers: Sequence[int], weights: Mapping[str, Tensor]
    ) -> None:
        """`weights` are a larger model's, fp32: those of `layers`, and `norm`."""
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(_layer(weights, f"layers.{i}.") for i in layers)
        self.norm = _module(weights["norm"])

    def forward(self, embedded: Tensor) -> Tensor:
        """Return the head's input (L, D) of a text's embedded tokens (L, D), the first at position 0."""
        x = embedded
        for layer in self.layers:
            named = {name.removesuffix(".weight"): each for name, each in layer.named_parameters()}
            x, _ = WholeBlock(self.config, named)(x)
        weight = self.norm.weight
        assert isinstance(weight, Tensor)
        return ops.rms_norm(x.float(), weight, self.config.norm_eps)


def _layer(weights: Mapping[str, Tensor], start: str) -> nn.Module:
    """Copy a layer's weights into modules of their names."""
    layer = nn.Module()
    for name in NAMES:
        layer.add_module(name, _module(weights[start + name], weights.get(f"{start}{name}.bias")))
    return layer


def _module(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    module = nn.Module()
    is_matrix = weight.shape[0] > 1 and weight.ndim > 1
    module.weight = nn.Parameter((weight if is_matrix else weight.reshape(-1)).clone())
    if bias is not None:
        module.bias = nn.Parameter(bias.reshape(-1).clone())
    return module


class NonLayers(NamedTuple):
    """Of a draft that is written, all but its layers."""

    arch: Arch
    config: ModelConfig
    described: Mapping[str, object]
    """Its config.json."""
    tensors: Mapping[str, Tensor]
    """Embedding and head."""


class DraftModelLearner(Learner):
    """Layers of a model. A row reads its text, so the steps of a draft are rows of one pass."""

    name, is_tried_early = "draft_model", False

    def __init__(
        self,
        source: Model,
        depth: int,
        shape: DraftShape,
        weights: Mapping[str, Tensor],
        checkpoint: Checkpoint | None = None,
        num_tokens: int = 0,
        net: DraftDecoder | None = None,
    ) -> None:
        """`weights` and `checkpoint` are the source's; `num_tokens` of replies are learned from."""
        self.source, self.depth, self.shape = source, depth, shape
        self.checkpoint, self.num_tokens = checkpoint, num_tokens
        config = replace(source.config, num_layers=len(shape.layers))
        self.net = net or DraftDecoder(config, shape.layers, weights)

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Compute the outputs text by text."""
        outputs: list[list[Tensor]] = [[] for _ in range(self.depth)]
        embedded = batch.embedded(self.source)
        for piece in batch.pieces:
            out = self.net(embedded[piece.first : piece.stop + self.depth]).float()
            for index, rows in enumerate(outputs):
                shift = 1 + index - piece.first
                rows.append(out[piece.start + shift : piece.stop + shift])
        return [torch.cat(rows) for rows in outputs]

    def write(
        self,
        folder: Path,
        weights: Mapping[str, Tensor],
        ids: Ids,
        target: Mapping[str, object],
        temperatures: Sequence[float],
    ) -> None:
        """Write a Hugging Face folder, and in another file the tokens it may guess. Raises OSError."""
        assert self.checkpoint is not None
        named = (str(target["tokenizer"]), self.num_tokens, str(target["name"]))
        write_draft(folder, self.checkpoint, self.non_layers(weights), weights, ids, *named)

    def non_layers(self, weights: Mapping[str, Tensor]) -> NonLayers:
        """Return what a written draft has outside its layers: here what the source has."""
        assert self.checkpoint is not None
        config, arch = read_config(self.checkpoint)
        tensors = {}
        for part in ("embed",) if config.tied_head else ("embed", "head"):
            for key, stored in stored_weights(self.checkpoint, arch, config, part):
                tensors[key] = torch.from_numpy(stored.dequantize())
                stored.release()
        described = config_json(self.checkpoint, config)
        return NonLayers(
            arch, config, described | {"num_hidden_layers": len(self.shape.layers)}, tensors
        )

    def drafter_options(self, folder: Path) -> dict[str, object]:
        """Draft as many tokens as it was measured with, in 8 bits: its file is fp16."""
        return {"model": str(folder), "num_draft": self.depth, "quant": QUANT}

    def figures(self, llm: LLM, folder: Path, ids: Ids, tau: float) -> dict[str, object]:
        """Measure the cost of a step."""
        from forerun.drafters.draft_model import Options, load

        small = load(Options(model=str(folder / MODEL), quant=QUANT), llm.target())
        by_bytes = trim.cost_by_bytes(small, llm.model, len(ids))
        return {
            "cost": self.shape.cost,
            "cost_bytes": by_bytes,
            "measured_cost": measured_cost(llm.model, small, ids),
            "mbsu": trim.mbsu(tau, by_bytes, self.depth),
        }

    def notes(self, record: Mapping[str, Any]) -> list[str]:
        """Say which layers, and what a step costs and brings."""
        measured = record["held_out"]
        return [
            f"layers {', '.join(map(str, self.shape.layers))}; a step reads {measured['cost_bytes']:.3f} of a pass's "
            f"bytes and takes {measured['measured_cost']:.3f} of its CPU time in {QUANT}; with {self.depth} tokens tau "
            f"{measured['all']['tau']:.3f}, memory-bound speed-up {measured['mbsu']:.2f}; {record['cpu_s']} s of CPU"
        ]


def write_draft(
    folder: Path,
    checkpoint: Checkpoint,
    non_layers: NonLayers,
    weights: Mapping[str, Tensor],
    ids: Ids,
    vocabulary: str,
    num_tokens: int,
    name: str,
) -> None:
    """Write the draft as a Hugging Face folder, and in another file the tokens it may guess. Raises OSError.

    `weights` are those of the layers and the last norm; the tokenizer is `checkpoint`'s.
    """
    arch, config, described, others = non_layers
    model = (folder / MODEL).resolve()
    rest = {"norm": weights["norm.weight"], **others}
    tensors = named(arch, config, None, {key: _half(each) for key, each in rest.items()})
    num_layers = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("layers."))
    for i in range(num_layers):
        layer = {
            key.removeprefix(f"layers.{i}.").removesuffix(".weight"): _half(weight)
            for key, weight in weights.items()
            if key.startswith(f"layers.{i}.")
        }
        tensors |= named(arch, config, i, layer)
    write_folder(model, described, {key: np.asarray(array) for key, array in tensors.items()})
    write_other_files(checkpoint, model)
    from forerun.drafters.base import trimmed

    made = trimmed.TrimmedConfig(
        str(model), name, vocabulary, config.vocab_size, len(ids), num_tokens
    )
    trimmed.save(folder, made, ids)


def _half(weight: Tensor) -> np.ndarray:
    array: np.ndarray = weight.detach().half().numpy()
    return array


def measured_cost(target: Model, draft: Model, ids: Ids) -> float:
    """Measure the CPU time of a step of the draft, its head cut to `ids`, as a share of a pass of the target.

    Steps and passes by turns, above a context of `CONTEXT` rows; medians.
    """
    part = draft.head_part(ids)
    heads: dict[Model, Callable[[Floats], object]] = {target: target.head, draft: part.logits}
    caches = {model: model.new_cache(1, CONTEXT + 1) for model in heads}
    tokens = tuple(ids[np.arange(CONTEXT) % len(ids)].tolist())
    for model, cache in caches.items():
        model.forward(Batch((Segment(0, 0, tokens),)), cache, ())
        cache.keep(0, range(CONTEXT))
    times: dict[Model, list[float]] = {target: [], draft: []}
    for _ in range(REPEATS):
        for model, cache in caches.items():
            start_s = time.process_time()
            hidden = model.forward(Batch((Segment(0, CONTEXT, tokens[:1]),)), cache, ())
            heads[model](hidden.last)
            times[model].append(time.process_time() - start_s)
            cache.truncate(0, CONTEXT)
    return median(times[draft]) / median(times[target])
