"""From a checkpoint to a decoder: find the family, read its config, fetch every weight by its canonical name.

It knows the layout of no file format (`formats/`) and of no family (`arch/`); it checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from forerun.core import registry
from forerun.core.errors import LoadError, unknown
from forerun.kernels.reference import WIDTH_UNIT
from forerun.nn.arch._common import Arch, Part
from forerun.nn.config import ModelConfig, weight_shapes
from forerun.nn.decoder import Decoder

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint, StoredTensor

Progress = Callable[[int, int], None]
"""Called with (weights loaded, weights in all)."""


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Decoder:
    """The checkpoint's model with fp32 weights on `device`.

    Raises LoadError if the architecture or one of its settings is not supported, or a tensor is missing or misshapen.
    """
    config, arch = read_config(checkpoint)
    total, loaded = len(weight_shapes(config)), 0
    weights: dict[str, Tensor] = {}
    for name, stored in stored_weights(checkpoint, arch, config):
        weights[name] = stored.dequantize().to(device)
        loaded += not name.endswith(".bias")
        if progress is not None:
            progress(loaded, total)
    return Decoder(config, weights)


def read_config(checkpoint: Checkpoint) -> tuple[ModelConfig, Arch]:
    """What the checkpoint's metadata say of the model, and its family's module. Reads no weights."""
    arch = find_arch(checkpoint)
    if checkpoint.kind == "gguf":
        return _checked(arch.config_from_gguf(checkpoint)), arch
    if checkpoint.config.get("quantization_config"):
        method = checkpoint.config["quantization_config"].get("quant_method", "unknown")
        raise LoadError(
            f"Hugging Face weights quantized with '{method}' are not supported: use the original or a GGUF file"
        )
    return _checked(arch.config_from_hf(checkpoint)), arch


def find_arch(checkpoint: Checkpoint) -> Arch:
    """The module of the checkpoint's family. Raises LoadError listing the families if there is none."""
    known: dict[str, Arch] = {}
    for family in registry.names("nn.arch"):
        arch = cast(Arch, registry.load("nn.arch", family))
        spellings = arch.GGUF_ARCHITECTURES if checkpoint.kind == "gguf" else arch.HF_ARCHITECTURES
        known |= dict.fromkeys(spellings, arch)
    if checkpoint.architecture not in known:
        raise LoadError(unknown("architecture", checkpoint.architecture, known))
    return known[checkpoint.architecture]


def stored_weights(
    checkpoint: Checkpoint, arch: Arch, config: ModelConfig
) -> Iterator[tuple[str, StoredTensor]]:
    """Every weight as stored, by canonical name, each followed by its bias if the checkpoint has one.

    Raises LoadError for a missing or misshapen tensor.
    """
    present = frozenset(checkpoint.names())
    for name, shape in weight_shapes(config).items():
        layer, _, short = name.removeprefix("layers.").rpartition(".")
        part = arch.part(short, config, checkpoint.kind)
        located = part.name.format(i=layer)
        if f"{located}.weight" not in present:
            raise LoadError(
                f"the checkpoint has no tensor '{located}.weight', which {config.family} needs"
            )
        yield name, _fetch(checkpoint, f"{located}.weight", part, shape)
        if f"{located}.bias" in present:
            yield f"{name}.bias", _fetch(checkpoint, f"{located}.bias", part, shape[:1])


def _fetch(checkpoint: Checkpoint, name: str, part: Part, shape: tuple[int, ...]) -> StoredTensor:
    stored = checkpoint.tensor(name)
    if part.rows is not None:
        stored = stored.rows(part.rows)
    if stored.shape != shape:
        cut = "" if part.rows is None else " (its part)"
        raise LoadError(f"tensor '{name}'{cut} should be {shape}, but is {stored.shape}")
    return stored


def _checked(config: ModelConfig) -> ModelConfig:
    widths = {
        "hidden size": config.hidden_size,
        "intermediate size": config.intermediate_size,
        "head dimension": config.head_dim,
    }
    for name, width in widths.items():
        if width % WIDTH_UNIT:
            raise LoadError(f"the {name} must be a multiple of {WIDTH_UNIT}, but is {width}")
    if config.num_heads % config.num_kv_heads:
        raise LoadError(
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} kv heads evenly"
        )
    return config
