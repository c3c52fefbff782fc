"""From a checkpoint to a model: find the family, read its config, fetch every weight by its canonical name.

It knows the layout of no file format (`formats/`) and of no family (`arch/`); it checks that the two
agree. On the CPU the native kernels run the model if they can, else torch does, in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from torch import Tensor

from forerun.core import registry
from forerun.core.errors import ConfigError, LoadError, unknown
from forerun.kernels.reference import WIDTH_UNIT
from forerun.nn.arch._common import Arch, Part
from forerun.nn.config import ModelConfig, weight_shapes
from forerun.nn.decoder import Decoder
from forerun.nn.model import Model
from forerun.nn.native import load_native, unsupported
from forerun.nn.packed import PackedFile
from forerun.quant.rtn import SCHEMES, Scheme, bits_per_weight, quantize_weight, quantized_type

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint, StoredTensor

Progress = Callable[[int, int], None]
"""Called with (weights loaded, weights in all)."""

Backend = Literal["auto", "native", "torch"]
"""What computes: the native CPU kernels, or torch in fp32."""

BACKENDS: tuple[str, ...] = get_args(Backend)


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    backend: Backend = "auto",
    quant: Scheme = "none",
    head_bits: int | None = None,
    weight_cache: bool = False,
    progress: Progress | None = None,
) -> Model:
    """The checkpoint's model on `device`: packed for the native kernels, or with fp32 weights for torch.

    `auto` is native on a CPU that has kernels for this model, else torch. `quant` (see
    `quant.rtn.quantize_weight`) rounds the weights; `head_bits` (see `nn.native.load_native`) needs the
    native kernels. With `weight_cache` packed weights are kept on disk (`nn.packed`). Raises LoadError if the
    architecture or one of its settings is not supported, if a tensor is missing or misshapen, or if
    `native` was asked for and cannot be had.
    """
    if backend not in BACKENDS:
        raise ConfigError(unknown("backend", backend, BACKENDS))
    if quant not in SCHEMES:
        raise ConfigError(unknown("quantization", quant, SCHEMES))
    config, arch = read_config(checkpoint)
    is_cpu = torch.device(device).type == "cpu"
    if backend == "native" and not is_cpu:
        raise ConfigError(
            f"the native kernels are for the CPU: backend native cannot run on {device}"
        )
    if backend == "native" or (backend == "auto" and is_cpu and unsupported(config) is None):
        packed = None
        if weight_cache:
            packed = PackedFile.of(checkpoint.path, quant=quant, head_bits=head_bits)
        return load_native(
            config,
            stored_weights(checkpoint, arch, config),
            num_threads=torch.get_num_threads(),
            quant=quant,
            head_bits=head_bits,
            packed=packed,
            progress=progress,
        )
    if head_bits is not None:
        raise ConfigError(
            f"a head of {head_bits} bits needs the native kernels: leave it out, or use backend native on a CPU"
        )
    weights = (
        (name, quantize_weight(name, stored, quant))
        for name, stored in stored_weights(checkpoint, arch, config)
    )
    return _load_torch(config, weights, device, progress)


def _load_torch(
    config: ModelConfig,
    stored_by_name: Iterable[tuple[str, StoredTensor]],
    device: torch.device | str,
    progress: Progress | None,
) -> Decoder:
    total, loaded = len(weight_shapes(config)), 0
    weights: dict[str, Tensor] = {}
    for name, stored in stored_by_name:
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
    quantization = checkpoint.config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else "?"
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
        located, part = _locate(name, checkpoint, arch, config)
        if f"{located}.weight" not in present:
            raise LoadError(
                f"the checkpoint has no tensor '{located}.weight', which {config.family} needs"
            )
        yield name, _fetch(checkpoint, f"{located}.weight", part, shape)
        if f"{located}.bias" in present:
            yield f"{name}.bias", _fetch(checkpoint, f"{located}.bias", part, shape[:1])


def weights_nbytes(checkpoint: Checkpoint, scheme: Scheme = "none") -> int:
    """Bytes of a checkpoint's weights, biases left out, once they are rounded so. Reads no weights."""
    config, arch = read_config(checkpoint)
    num_bits = 0.0
    for name, shape in weight_shapes(config).items():
        located, _ = _locate(name, checkpoint, arch, config)
        stored = checkpoint.tensor(f"{located}.weight").dtype
        num_bits += math.prod(shape) * bits_per_weight(quantized_type(name, shape, stored, scheme))
    return math.ceil(num_bits / 8)


def _locate(name: str, checkpoint: Checkpoint, arch: Arch, config: ModelConfig) -> tuple[str, Part]:
    """The checkpoint's name for a weight, without `.weight`, and which part of that it is."""
    layer, _, short = name.removeprefix("layers.").rpartition(".")
    part = arch.part(short, config, checkpoint.kind)
    return part.name.format(i=layer), part


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
