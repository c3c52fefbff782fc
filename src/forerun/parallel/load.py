"""From a configuration to this process's part of the model; only that part is packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.config import EngineConfig
from forerun.core.device import choose_device, return_freed, set_threads
from forerun.core.errors import ConfigError, ForerunError
from forerun.hub.names import resolve
from forerun.model.backends import native
from forerun.model.backends.native import MAX_ROWS
from forerun.model.loader import blank_weights, choose_backend, read_config, stored_weights
from forerun.model.packed import PackedFile
from forerun.parallel.follower import TensorFollower, obey
from forerun.parallel.group import Group, excuse, join
from forerun.parallel.head import num_floats
from forerun.parallel.place import Place
from forerun.parallel.split import Part, split_checkpoint
from forerun.parallel.tensor import PartDecoder, TensorParallel
from forerun.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from forerun.model.arch.base.mapping import Arch
    from forerun.model.config import ModelConfig
    from forerun.weights.base import Checkpoint


def load(checkpoint: Checkpoint, config: EngineConfig) -> TensorParallel:
    """Return the model as rank 0 has it, once all ranks are there. Raises ConfigError, LoadError."""
    model, arch, parts = _parts(checkpoint, config)
    group = _join(checkpoint, config, model, parts)
    decoder = TensorParallel(model, parts, group)
    _fill(decoder, checkpoint, arch, config)
    decoder.wait_for_others()
    return decoder


def follow(config: EngineConfig) -> None:
    """Be one of the other ranks, until rank 0 ends; what is wrong with this one is said by rank 0, too.

    Raises ConfigError, LoadError before the ranks have met.
    """
    if config.threads is not None:
        set_threads(config.threads)
    try:
        checkpoint = open_checkpoint(resolve(config.model))
        model, arch, parts = _parts(checkpoint, config)
    except ForerunError as error:
        excuse(Place.of(), error)
        raise
    group = _join(checkpoint, config, model, parts)
    try:
        decoder = PartDecoder(model, parts[group.rank], group)
        _fill(decoder, checkpoint, arch, config)
    except Exception as error:
        group.follower.fail(str(error))
        raise
    del checkpoint
    return_freed()
    obey(group.follower, TensorFollower(group, decoder, parts).does)


def blank(checkpoint: Checkpoint, config: EngineConfig) -> PartDecoder:
    """Return rank 0's part without its weights, for planning: the other parts are no larger. Raises LoadError."""
    model, arch, parts = _parts(checkpoint, config)
    decoder = PartDecoder(model, parts[0])
    weights = parts[0].blank(blank_weights(checkpoint, arch, model, config.quant), model)
    native.fill_blank(decoder, weights, config.head_bits)
    return decoder


def _parts(checkpoint: Checkpoint, config: EngineConfig) -> tuple[ModelConfig, Arch, list[Part]]:
    model, arch = read_config(checkpoint)
    if choose_backend(config.backend, model, choose_device(config.device)) is not native:
        raise ConfigError(
            "--tensor-parallel-size needs the native kernels: leave out --backend and --device, and see `forerun check`"
        )
    size = config.tensor_parallel_size
    return model, arch, split_checkpoint(checkpoint, arch, model, size, config.quant)


def _join(
    checkpoint: Checkpoint, config: EngineConfig, model: ModelConfig, parts: Sequence[Part]
) -> Group:
    place = Place.of()
    place.check(config.tensor_parallel_size)
    options = {"quant": config.quant, "head_bits": config.head_bits}
    count = num_floats(model.hidden_size, [part.tokens for part in parts], MAX_ROWS)
    return join(place, checkpoint.path, options, count)


def _fill(decoder: PartDecoder, checkpoint: Checkpoint, arch: Arch, config: EngineConfig) -> None:
    """Pack the part's weights, or read them as they were packed before."""
    model, part, packed = decoder.config, decoder.part, None
    if config.weight_cache:
        which = f"{part.rank} of {part.size}"
        packed = PackedFile.of(
            checkpoint.path, quant=config.quant, head_bits=config.head_bits, part=which
        )
    weights = part.cut(stored_weights(checkpoint, arch, model), model)
    native.fill(
        decoder,
        weights,
        part.names(model),
        quant=config.quant,
        head_bits=config.head_bits,
        packed=packed,
    )
