"""Heads that draft as they lie in files: inside the target's own, or in a file of the same model.

`model/mtp_tensors.py` has their names. The block is read as the first layer of a model of one, so that the family's
own module says where its weights lie and how they are stored.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import SELF, Target
from forerun.drafters.base.networks.trained import UNTRAINED, untrained_tensors
from forerun.drafters.mtp.network import HeadWeights
from forerun.hub.names import resolve
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig
from forerun.model.loader import check_shapes, find_arch, stored_weights
from forerun.model.mtp_tensors import MtpNames, head_of
from forerun.model.shapes import weight_shapes
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.renamed import RenamedCheckpoint


def has_head(path: Path, config: ModelConfig) -> bool:
    """Say whether a model's file has a head inside that fits the model. Reads no weights."""
    try:
        checkpoint = open_checkpoint(path)
        names = head_of(checkpoint.names(), config.num_layers)
        if names is not None:
            _check(checkpoint, names, one_layer(config))
    except LoadError:
        return False
    return names is not None


def read(model: str, target: Target) -> HeadWeights:
    """Read the head of a target. Raises LoadError that says what is wrong."""
    if model == UNTRAINED:
        return untrained(target.model.config)
    path = target.path if model == SELF else resolve(model)
    if path is None:
        raise LoadError("the target was not loaded from a file: give mtp:model=FILE with its head")
    checkpoint, config = open_checkpoint(path), target.model.config
    names = head_of(checkpoint.names(), config.num_layers)
    if names is None:
        raise LoadError(
            f"{path} has no head that drafts behind {config.num_layers} layers: no tensor 'mtp.fc.weight', "
            f"'blk.{config.num_layers}.nextn.eh_proj.weight' or 'model.layers.{config.num_layers}.eh_proj.weight'"
        )
    try:
        block = one_layer(config)
        _check(checkpoint, names, block)
        return _read(checkpoint, names, block, config.vocab_size)
    except LoadError as error:
        raise LoadError(f"{path}: the head that drafts does not fit this model: {error}") from error


def one_layer(config: ModelConfig) -> ModelConfig:
    """Return the shape of a model of one layer, the last of its kind that attends. Raises LoadError."""
    kinds = (config.layer(i) for i in reversed(range(config.num_layers)))
    layer = next(
        (k for k in kinds if k.has_mixer and k.has_feed_forward and k.recurrent is None), None
    )
    if layer is None or layer.shares_kv_of is not None or config.per_layer_width is not None:
        raise LoadError(f"a {config.family} has no layer that a head could be like")
    return replace(
        config, num_layers=1, layers=(layer,), tied_head=True, learned_position_offset=None
    )


def untrained(config: ModelConfig) -> HeadWeights:
    """Make a head of random weights, for checks and to measure what a draft costs."""
    block, width = one_layer(config), config.hidden_size
    shapes = {name: shape for name, shape in weight_shapes(block).items() if name != "embed"}
    stored = untrained_tensors({"fc": (width, 2 * width), **shapes})
    fc, ones = stored.pop("fc"), np.ones(width, np.float32)
    return HeadWeights(block, fc, ones, ones, tuple(stored.items()))


def _check(checkpoint: Checkpoint, names: MtpNames, config: ModelConfig) -> None:
    """Raise LoadError for a tensor of a head that is missing or misshapen."""
    width, present = config.hidden_size, checkpoint.names()
    text = [f"{name}.weight" for name in (names.embed, names.head) if name is not None]
    if text and text[0] not in present and text[1] in present:
        raise LoadError(f"it has a tensor '{text[1]}', but no '{text[0]}'")
    fc = checkpoint.tensor(f"{names.fc}.weight")
    if fc.shape != (width, 2 * width):
        raise LoadError(f"tensor '{fc.name}' should be {(width, 2 * width)}, but is {fc.shape}")
    for prefixes, part in _parts(checkpoint, names):
        renamed = RenamedCheckpoint(checkpoint, prefixes)
        try:
            check_shapes(renamed, find_arch(checkpoint), config, Settings(checkpoint), part)
        except LoadError as error:
            ((plain, stored),) = prefixes.items()
            raise LoadError(str(error).replace(f"'{plain}", f"'{stored}")) from None


def _parts(checkpoint: Checkpoint, names: MtpNames) -> list[tuple[dict[str, str], str]]:
    """Return what the block and the norms are called in a model of one layer, and which of its weights they are.

    All three norms are stored as the one behind the last layer is.
    """
    is_gguf = checkpoint.kind == "gguf"
    first, final = ("blk.0.", "output_norm.") if is_gguf else ("model.layers.0.", "model.norm.")
    norms = (names.embedding_norm, names.hidden_norm, names.norm)
    return [({first: names.block}, "layers.0."), *(({final: f"{n}."}, "norm") for n in norms)]


def _read(
    checkpoint: Checkpoint, names: MtpNames, config: ModelConfig, vocab_size: int
) -> HeadWeights:
    """Take the weights of a head whose tensors were checked."""
    arch = find_arch(checkpoint)
    block, *norms = (
        list(stored_weights(RenamedCheckpoint(checkpoint, prefixes), arch, config, part))
        for prefixes, part in _parts(checkpoint, names)
    )
    embedding_norm, hidden_norm, norm = (stored for ((_, stored),) in norms)
    present = checkpoint.names()
    text = tuple(
        (name, checkpoint.tensor(f"{stored}.weight"))
        for name, stored in (("embed", names.embed), ("head", names.head))
        if stored is not None and f"{stored}.weight" in present
    )
    for name, stored in text:
        if stored.shape != (vocab_size, config.hidden_size):
            raise LoadError(
                f"its '{name}' should be {(vocab_size, config.hidden_size)}, but is {stored.shape}"
            )
    return HeadWeights(
        config,
        checkpoint.tensor(f"{names.fc}.weight"),
        embedding_norm.dequantize(),
        hidden_norm.dequantize(),
        (*block, ("norm", norm)),
        text,
    )
