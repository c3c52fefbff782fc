"""Recurrent networks in files: ours, IBM's and vLLM's `mlp_speculator`, and Snowflake's `sum_lstm`.

What a file leaves out is the target's: with `target_embedding`, a token's vector is `emb_map` on the target's; with
`target_head`, the head is the target's rows times `head_map`. Ours may name the tokens of the head in `draft_ids`. Tied
tensors may be repeated or left out, and all names may begin with `speculator.`.

D width of the target, V its vocabulary, V' rows of the head, p inner width, n depths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.drafters.mlp_speculator.drafting import RecurrentWeights
from forerun.drafting.base import Target
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.networks.best_first import MAX_STEPS
from forerun.drafting.networks.folder import UNTRAINED, Folder, target_rows
from forerun.model.model import Model
from forerun.text.hf_tokenizer import read_json

MODEL_TYPES = ("mlp_speculator",)
AUTO = "auto"
"""The name of the network that ships for the target."""
SHIPPED = Path(str(resources.files("forerun.drafters.mlp_speculator"))) / "shipped"
"""Networks that came with the package, a folder each."""
GATE_TABLES = ("forget_emb", "input_emb", "output_emb", "cell_emb")
_CELLS = {"mlp": False, "sum_rnn": False, "lstm": True, "sum_lstm": True}
_PREFIX = "speculator."


@dataclass(frozen=True, slots=True)
class Shape:
    """The configuration of a file."""

    hidden_size: int
    inner_size: int
    vocab_size: int
    num_predict: int
    is_lstm: bool
    is_tied: bool
    has_one_table: bool
    """The gates of an LSTM add the same embedding, as wide as p."""
    has_target_embedding: bool
    has_target_head: bool

    @property
    def max_depth(self) -> int:
        """Tied networks can go on."""
        return MAX_STEPS if self.is_tied and self.num_predict > 1 else self.num_predict

    def tensors(self, num_tokens: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """By our names, those in files and the shapes."""
        inner, width = self.inner_size, self.inner_size * (4 if self.is_lstm else 1)
        own = 1 if self.is_tied else self.num_predict
        proj, ln = ("projs", "cell_ln") if self.is_lstm else ("proj", "ln")
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
        for i in range(min(self.num_predict, 2) if self.is_tied else self.num_predict):
            size = inner if i else self.hidden_size
            wanted[f"proj.{i}"] = f"{proj}.{i}.weight", (width, size)
        norms = {f"ln.{i}": f"{ln}.{i}" for i in range(own)}
        norms |= {"state_ln": "state_ln.0"} if self.is_lstm else {}
        for ours, theirs in norms.items():
            wanted[ours] = f"{theirs}.weight", (inner,)
            wanted[f"{ours}.bias"] = f"{theirs}.bias", (inner,)
        if self.has_target_embedding:
            size = inner if self.has_one_table else width
            wanted["map"] = "emb_map.weight", (size, self.hidden_size)
        elif self.is_lstm:
            for name in GATE_TABLES[: 1 if self.has_one_table else 4]:
                wanted[name] = f"{name}.0.weight", (self.vocab_size, inner)
        else:
            for i in range(own):
                wanted[f"emb.{i}"] = f"emb.{i}.weight", (self.vocab_size, inner)
        if self.has_target_head:
            wanted["head_map"] = "head_map.weight", (self.hidden_size, inner)
        else:
            for i in range(own):
                wanted[f"head.{i}"] = f"head.{i}.weight", (num_tokens, inner)
        return wanted


def check_folder(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model not in (AUTO, UNTRAINED):
        network_folder.check_folder(Path(model).expanduser(), MODEL_TYPES)


def read(model: str, target: Target) -> RecurrentWeights:
    """A network for a target. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    path = shipped(target) if model == AUTO else Path(model).expanduser()
    if path is None:
        raise LoadError(
            "no network ships for this model: give model=FOLDER, as forerun train drafter writes it"
        )
    folder = network_folder.read(path, target)
    shape, tensors, tokens = stored(folder, target)
    return RecurrentWeights(
        inner_size=shape.inner_size,
        num_predict=shape.num_predict,
        max_depth=shape.max_depth,
        is_lstm=shape.is_lstm,
        scales_input=folder.flag("scale_input"),
        tensors=_multiplied(tensors, target.model, tokens),
        tokens=tokens,
        temperatures=network_folder.temperatures(folder),
        head_map=tensors.get("head_map"),
    )


def shipped(target: Target) -> Path | None:
    """Find the network that came with the package for this target, or for one of its size and tokenizer."""
    if target.vocabulary is None:
        return None
    here = network_folder.describe_target(target, "")
    for config in sorted(SHIPPED.glob(f"*/{network_folder.CONFIG}")):
        trained = read_json(config).get("target")
        if isinstance(trained, dict) and trained | {"name": ""} == here:
            return config.parent
    return None


def stored(folder: Folder, target: Target) -> tuple[Shape, dict[str, Tensor], Tensor | None]:
    """The shape, the tensors by our names, and the tokens of the head. Raises LoadError naming what is wrong."""
    shape = _shape(folder, target)
    names = {name.removeprefix(_PREFIX): name for name in folder.tensors}
    tokens = None
    if (name := names.pop("draft_ids", None)) is not None:
        tokens = network_folder.token_ids(folder, name, shape.vocab_size)
    wanted = shape.tensors(shape.vocab_size if tokens is None else len(tokens))
    found = {}
    for ours, (theirs, size) in wanted.items():
        folder.need({names.get(theirs, _PREFIX + theirs): size})
        found[ours] = folder.tensors[names[theirs]].float()
    for theirs in sorted(names.keys() - {theirs for theirs, _ in wanted.values()}):
        if not (shape.is_tied and theirs.partition(".")[2].split(".")[0].isdecimal()):
            raise LoadError(f"{folder.path}: tensor '{names[theirs]}' is none of such a network")
    return shape, found, tokens


def untrained(target: Target) -> RecurrentWeights:
    """The LSTM with random weights, as wide as the target."""
    shape, generator = target.model.config, torch.Generator().manual_seed(0)
    width = shape.hidden_size
    sizes = {"proj.0": 4 * width, "proj.1": 4 * width, "map": width}
    tensors = {
        name: torch.randn(size, width, generator=generator) / width**0.5
        for name, size in sizes.items()
    }
    tensors |= {"ln.0": torch.ones(width), "state_ln": torch.ones(width)}
    tokens = network_folder.untrained_tokens(shape.vocab_size)
    return RecurrentWeights(width, 4, MAX_STEPS, True, False, tensors, tokens)


def _shape(folder: Folder, target: Target) -> Shape:
    """The configuration, compared with the target's. Raises LoadError."""
    config = target.model.config
    for value, ours, what in (
        (
            folder.number("input_hidden_dim", "hidden_size", "emb_dim"),
            config.hidden_size,
            "states of width",
        ),
        (folder.number("vocab_size"), config.vocab_size, "a vocabulary of"),
    ):
        if value != ours:
            raise LoadError(
                f"{folder.path} was trained for another model: it reads {what} {value}, this model has {ours}"
            )
    cell = folder.config.get("cell", folder.config.get("method", "mlp"))
    if cell not in _CELLS:
        raise LoadError(f"{folder.path}: 'cell' must be one of {', '.join(_CELLS)}, got {cell!r}")
    is_lstm = _CELLS[str(cell)]
    names = ("proj_dim", "inner_dim") if is_lstm else ("inner_dim",)
    num_predict = folder.number("n_predict", "num_lookahead_tokens")
    if num_predict > MAX_STEPS:
        raise LoadError(f"{folder.path}: n_predict must be at most {MAX_STEPS}, got {num_predict}")
    return Shape(
        hidden_size=config.hidden_size,
        inner_size=folder.number(*names, default=0, least=0) or config.hidden_size,
        vocab_size=config.vocab_size,
        num_predict=num_predict,
        is_lstm=is_lstm,
        is_tied=is_lstm or folder.flag("tie_weights"),
        has_one_table=folder.flag("tie_lstm_embs"),
        has_target_embedding=folder.flag("target_embedding"),
        has_target_head=folder.flag("target_head"),
    )


def _multiplied(
    tensors: Mapping[str, Tensor], target: Model, tokens: Tensor | None
) -> dict[str, Tensor]:
    """The head's rows times its map, and the tables of an LSTM's gates side by side."""
    found = dict(tensors)
    if (map := found.pop("head_map", None)) is not None:
        found["head.0"] = target_rows(target, tokens) @ map
    tables = [found.pop(name) for name in GATE_TABLES if name in found]
    if tables:
        found["emb.0"] = torch.cat(tables, 1)
    return found
