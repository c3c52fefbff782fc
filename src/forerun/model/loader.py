"""From a checkpoint to a model: find the family, read its config, fetch every weight by its canonical name.

It knows the layout of no file format (`weights/`) and of no family (`model/arch/`); it checks that the two
agree. What runs the model is a module of `model/backends`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from forerun.core import registry
from forerun.core.errors import ConfigError, LoadError, unknown
from forerun.model.arch.base.mapping import Arch
from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import TensorSource
from forerun.model.backends import native as native_backend
from forerun.model.backends import triton
from forerun.model.backends.base import Backend, BlankWeight, Progress
from forerun.model.config import ModelConfig
from forerun.model.kernels import native
from forerun.model.model import Model
from forerun.model.mtp_tensors import block_head, head_blocks
from forerun.model.shapes import sizes_of, weight_shapes
from forerun.system.device import choose_device, torch_problem
from forerun.weights.rtn import Scheme, quantized_format

if TYPE_CHECKING:
    from forerun.core.config import EngineConfig
    from forerun.weights.checkpoint import Checkpoint
    from forerun.weights.stored import StoredTensor


_KEYS_AND_VALUES = ("k", "v", "k_norm")
ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM", "gemma4-assistant")
"""Architectures of files that draft for a model, and are none."""
AHEAD_NBYTES = 128 << 20
"""Bytes of the file that are read while those before them are packed."""


def load_model(
    checkpoint: Checkpoint,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    shares_with: Model | None = None,
    quant: Scheme = "none",
    head_bits: int | None = None,
    progress: Progress | None = None,
    max_len: int | None = None,
) -> Model:
    """Return the checkpoint's model on `device`, by a module of `model/backends`.

    A draft model `shares_with` its target, in turn with which it runs: on the CPU they share threads.
    The options are those of `model.backends.base.Backend.load`; `progress` is told what is done; no text will be longer
    than `max_len`. Raises ConfigError for an unusable option, LoadError for a model that is not supported or damaged.
    """
    config, arch = read_config(checkpoint)
    config = config.within(max_len)
    chosen = choose_backend(config, device, must_be_here=True)
    return chosen.load(
        config,
        stored_weights(checkpoint, arch, config, progress=progress),
        device=device,
        num_threads=num_threads,
        shares_with=shares_with,
        quant=quant,
        head_bits=head_bits,
    )


def blank_model(
    checkpoint: Checkpoint,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    shares_with: Model | None = None,
    quant: Scheme = "none",
    head_bits: int | None = None,
) -> Model:
    """Return the model that `load_model` would give, without its weights: for planning. Only metadata are read."""
    config, arch = read_config(checkpoint)
    weights = blank_weights(checkpoint, arch, config, quant)
    chosen = choose_backend(config, device)
    return chosen.blank(
        config,
        weights,
        device=device,
        num_threads=num_threads,
        shares_with=shares_with,
        head_bits=head_bits,
    )


def blank_weights(
    checkpoint: Checkpoint, arch: Arch, config: ModelConfig, quant: Scheme
) -> Iterator[BlankWeight]:
    """Yield what is known of every weight, rounded as `quant` says, before it is read. Raises LoadError."""
    for name, shape in weight_shapes(config).items():
        (_, located, source, _), *bias = _located(name, shape, checkpoint, arch, config)
        stored = source.stored_format(checkpoint.tensor(located[0]).format)
        format = quantized_format(name, shape, stored, quant)
        yield BlankWeight(name, shape, format, bool(bias))


def device_of(config: EngineConfig) -> str:
    """Return the device that a configuration asks for, before a model is opened.

    Raises ConfigError for one that is unknown, and where what would compute is not installed.
    """
    device = choose_device(config.device)
    if device == "cpu" and (reason := native.reason()):
        raise ConfigError(f"the native kernels are not there ({reason}): {native.REMEDY}")
    needs_torch = device != "cpu" or config.tensor_parallel_size > 1
    if needs_torch and (problem := torch_problem()):
        raise ConfigError(problem)
    return device


def choose_backend(config: ModelConfig, device: str, *, must_be_here: bool = False) -> Backend:
    """Return what runs a model on such a device.

    Raises LoadError if it does not support the model, or the device is not here and must be.
    """
    backend = cast(Backend, native_backend if device == "cpu" else triton)
    reason = backend.unsupported(config) or (backend.absent(device) if must_be_here else None)
    if reason is not None:
        raise LoadError(f"this model cannot run on {device}: {reason}")
    return backend


def read_config(checkpoint: Checkpoint) -> tuple[ModelConfig, Arch]:
    """Read the model's configuration from the checkpoint's metadata, and find its family's module. Reads no weights.

    Raises LoadError if the metadata are incomplete or wrong, or do not fit the checkpoint's tensors.
    """
    arch, settings = find_arch(checkpoint), Settings(checkpoint)
    if settings.is_gguf:
        settings.reject("attention.causal", True)
    config = arch.config(settings)
    _check_tensors(checkpoint, arch, config, settings)
    return config, arch


def find_arch(checkpoint: Checkpoint) -> Arch:
    """Return the module of the checkpoint's family. Raises LoadError listing the families if there is none."""
    if checkpoint.architecture in ASSISTANTS:
        raise LoadError(
            f"{checkpoint.path} is an assistant: it drafts for the Gemma 4 that it was made for, and is not a model by "
            f"itself; load that one, with -d gemma4_assistant:model={checkpoint.path}"
        )
    known: list[str] = []
    named, plain = checkpoint.architecture.lower(), _plain(checkpoint.architecture)
    for family in sorted(
        registry.names("model.arch"),
        key=lambda name: not named.startswith(name.replace("_", "")),  # likely ones first
    ):
        arch = cast(Arch, registry.load("model.arch", family))
        names = arch.GGUF_ARCHITECTURES if checkpoint.kind == "gguf" else arch.HF_ARCHITECTURES
        if checkpoint.architecture in names or (
            checkpoint.kind == "hf" and plain in map(_plain, names)
        ):
            return arch
        known += names
    raise LoadError(unknown("architecture", checkpoint.architecture, known))


def _plain(architecture: str) -> str:
    """Return the family in the name of a class, of one without a head too, or in a `model_type`."""
    return re.sub(r"(For(CausalLM|ConditionalGeneration)|Model|_text)$|_", "", architecture).lower()


def stored_weights(
    checkpoint: Checkpoint,
    arch: Arch,
    config: ModelConfig,
    part: str = "",
    progress: Progress | None = None,
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield every weight as stored, by canonical name, each followed by its bias if the checkpoint has one.

    `part` is a weight's name or, with a dot at its end, that of a layer: only those then. What comes next is read from
    disk meanwhile.
    """
    shapes = {n: shape for n, shape in weight_shapes(config).items() if _is_of(n, part)}
    waiting = deque(
        (canonical, [checkpoint.tensor(each) for each in located], source)
        for name, shape in shapes.items()
        for canonical, located, source, _ in _located(name, shape, checkpoint, arch, config)
    )
    total = sum(stored_nbytes(stored) for _, stored, _ in waiting)
    done = ahead = next_place = 0
    while waiting:
        while next_place < len(waiting) and ahead < AHEAD_NBYTES:
            for each in waiting[next_place][1]:
                each.read_ahead()
            ahead += stored_nbytes(waiting[next_place][1])
            next_place += 1
        name, stored, source = waiting.popleft()
        next_place, ahead = next_place - 1, ahead - stored_nbytes(stored)
        yield name, source.take(stored, config)
        done += stored_nbytes(stored)
        if progress is not None:
            progress(done, total)


def stored_nbytes(stored: Iterable[StoredTensor]) -> int:
    """Return the bytes of tensors in their files."""
    return sum(each.nbytes for each in stored)


def weights_nbytes(checkpoint: Checkpoint, scheme: Scheme = "none") -> int:
    """Return the bytes of a checkpoint's weights, biases left out, once they are rounded so. Reads no weights."""
    config, arch = read_config(checkpoint)
    weights = blank_weights(checkpoint, arch, config, scheme)
    num_bits = sum(math.prod(weight.shape) * weight.format.bits_per_weight for weight in weights)
    return math.ceil(num_bits / 8)


def step_nbytes(config: ModelConfig, nbytes: float, num_tokens: int | None) -> float:
    """Return about how many of a model's bytes a step reads whose head scores `num_tokens` tokens, all if None.

    The embedding is not read, unless it is the head; all weights are taken to have the same number of bits.
    """
    num_weights = sum(math.prod(shape) for shape in weight_shapes(config).values())
    num_scored = config.vocab_size if num_tokens is None else num_tokens
    num_unread = config.vocab_size * (1 if config.tied_head else 2) - num_scored
    return nbytes * (1 - num_unread * config.hidden_size / num_weights)


def _located(
    name: str, shape: tuple[int, ...], checkpoint: Checkpoint, arch: Arch, config: ModelConfig
) -> Iterator[tuple[str, list[str], TensorSource, tuple[int, ...]]]:
    """Yield a weight and, if there is one, its bias: canonical name, tensors, source, shape of each tensor."""
    layer, _, short = name.removeprefix("layers.").rpartition(".")
    names = checkpoint.names()
    source = arch.source(short, config, checkpoint.kind).resolve(layer, names)
    yield name, source.tensors(layer), source, source.stored_shape(shape)
    bias = source.tensors(layer, is_bias=True)
    if bias[0] in names:
        yield f"{name}.bias", bias, source, source.stored_shape(shape[:1])


def _check_tensors(
    checkpoint: Checkpoint, arch: Arch, config: ModelConfig, settings: Settings
) -> None:
    """Raise LoadError if a tensor is missing or misshapen, one is left over, or there are more layers than it says."""
    names = checkpoint.names()
    norm = "attn_out_norm" if config.norms == "after" else "attn_norm"
    norm = arch.source(norm, config, checkpoint.kind).name
    num_layers = next(
        i
        for i in itertools.count()
        if f"{norm.format(i=i)}.weight" not in names or block_head(names, i) is not None
    )
    if num_layers != config.num_layers:
        raise LoadError(
            f"{settings.described('num_layers')}, but the checkpoint has tensors of {num_layers} layers"
        )
    used = check_shapes(checkpoint, arch, config, settings)
    for i in range(config.num_layers):  # files may have weights that are not used
        if config.layer(i).shares_kv_of is not None:
            sources = (arch.source(part, config, checkpoint.kind) for part in _KEYS_AND_VALUES)
            used.update(source.tensors(str(i))[0] for source in sources)
    prefix = norm.partition("{i}")[0]
    drafts = head_blocks(names, num_layers)
    unknown = (
        n
        for n in names - used
        if n.startswith(prefix) and n.endswith(".weight") and not n.startswith(drafts)
    )
    extra = min(unknown, default=None)
    if extra is not None:
        count = f" ({settings.described('num_experts')})" if "num_experts" in settings.keys else ""
        raise LoadError(
            f"the checkpoint has a tensor '{extra}', which {config.family} does not use{count}"
        )


def check_shapes(
    checkpoint: Checkpoint, arch: Arch, config: ModelConfig, settings: Settings, part: str = ""
) -> set[str]:
    """Return the tensors of a part, as `stored_weights` has it. Raises LoadError if one is missing or misshapen."""
    used, names = set[str](), checkpoint.names()
    for name, shape in weight_shapes(config).items():
        if not _is_of(name, part):
            continue
        fields = (field for field in sizes_of(name) if field in settings.keys)
        sizes = ", ".join(map(settings.described, fields))
        for _, located, source, expected in _located(name, shape, checkpoint, arch, config):
            used.update(located)
            missing = next((each for each in located if each not in names), None)
            if missing is not None:
                raise LoadError(
                    f"the checkpoint has no tensor '{missing}', which {config.family} needs ({sizes})"
                )
            for each in located:
                stored = checkpoint.tensor(each).shape
                if not source.fits(stored, expected):
                    raise LoadError(
                        f"tensor '{each}' should be {expected}, but is {stored} ({sizes})"
                    )
    return used


def _is_of(name: str, part: str) -> bool:
    """Tell whether a weight is the one that is named, or of the layer that is; of none, all are."""
    return part in ("", name) or (part.endswith(".") and name.startswith(part))
