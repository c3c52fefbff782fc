"""From a configuration to this process's part of the model; only that part is packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forerun.core.config import EngineConfig
from forerun.core.device import return_freed
from forerun.core.errors import ConfigError, ForerunError
from forerun.hub.names import resolve
from forerun.model.backends import native
from forerun.model.backends.native import MAX_ROWS, NativeDecoder
from forerun.model.loader import (
    blank_weights,
    choose_backend,
    device_of,
    read_config,
    stored_weights,
)
from forerun.model.packed import fill as packing
from forerun.model.packed.file import PackedFile
from forerun.parallel.follower import Commands, TensorFollower, run_commands
from forerun.parallel.group import RankGroup, connect, join, report_failure
from forerun.parallel.head import num_floats
from forerun.parallel.launch import Launch
from forerun.parallel.link import Follower, Leader
from forerun.parallel.pipeline import Pipeline, Stage, StageFollower, stages
from forerun.parallel.split import Part, split_checkpoint
from forerun.parallel.tensor import PartDecoder, TensorParallel
from forerun.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from forerun.model.arch.base.mapping import Arch
    from forerun.model.config import ModelConfig
    from forerun.weights.base import Checkpoint
    from forerun.weights.stored import StoredTensor


def load(checkpoint: Checkpoint, config: EngineConfig) -> NativeDecoder:
    """Return rank 0's model once all ranks are connected. Raises ConfigError, LoadError."""
    model, arch = _read(checkpoint, config)
    decoder: TensorParallel | Pipeline
    if config.pipeline_parallel_size > 1:
        layers = stages(model, config.num_ranks)
        leader = _connect(checkpoint, config)
        assert isinstance(leader, Leader)
        decoder = Pipeline(model, layers, leader, config.threads)
        _fill(decoder, decoder.cut(checkpoint, arch), decoder.names(), checkpoint, config)
    else:
        parts = split_checkpoint(checkpoint, arch, model, config.num_ranks, config.quant)
        group = _join(_connect(checkpoint, config), model, parts)
        decoder = TensorParallel(model, parts, group, config.threads)
        _fill_part(decoder, checkpoint, arch, config)
    decoder.wait_for_others()
    return decoder


def follow(config: EngineConfig) -> None:
    """Run as one of the other ranks until rank 0 ends. Errors of this rank are reported by rank 0, too.

    Raises ConfigError, LoadError before the ranks are connected.
    """
    try:
        checkpoint = open_checkpoint(resolve(config.model))
        _read(checkpoint, config)
    except ForerunError as error:
        report_failure(Launch.of(), error)
        raise
    leader = _connect(checkpoint, config)
    assert isinstance(leader, Follower)
    try:
        commands = _loaded(leader, checkpoint, config)
    except Exception as error:
        leader.fail(str(error))
        raise
    del checkpoint
    return_freed()
    run_commands(leader, commands)


def blank(checkpoint: Checkpoint, config: EngineConfig) -> NativeDecoder:
    """Return rank 0's part without its weights, for planning. Raises LoadError."""
    model, arch = _read(checkpoint, config)
    weights = blank_weights(checkpoint, arch, model, config.quant)
    if config.pipeline_parallel_size > 1:
        stage = Stage(model, stages(model, config.num_ranks)[0], 0, config.threads)
        packing.fill_blank(stage, stage.blank(weights), config.head_bits)
        return stage
    part, *_ = split_checkpoint(checkpoint, arch, model, config.num_ranks, config.quant)
    decoder = PartDecoder(model, part, num_threads=config.threads)
    packing.fill_blank(decoder, part.blank(weights, model), config.head_bits)
    return decoder


def _read(checkpoint: Checkpoint, config: EngineConfig) -> tuple[ModelConfig, Arch]:
    model, arch = read_config(checkpoint)
    if choose_backend(config.backend, model, device_of(config)) is not native:
        raise ConfigError(
            "a model over several processes needs the native kernels: leave out --backend and --device, "
            "and see `forerun check`"
        )
    return model, arch


def _connect(checkpoint: Checkpoint, config: EngineConfig) -> Leader | Follower:
    launch = Launch.of()
    launch.check(config)
    options = {
        "quant": config.quant,
        "head_bits": config.head_bits,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
    }
    return connect(launch, checkpoint.files, options)


def _join(link: Leader | Follower, model: ModelConfig, parts: Sequence[Part]) -> RankGroup:
    count = num_floats(model.hidden_size, [part.tokens for part in parts], MAX_ROWS)
    return join(Launch.of(), link, count)


def _loaded(leader: Follower, checkpoint: Checkpoint, config: EngineConfig) -> Commands:
    """Load the part of a rank above 0; return the commands that it runs."""
    model, arch = _read(checkpoint, config)
    rank = Launch.of().rank
    if config.pipeline_parallel_size > 1:
        stage = Stage(model, stages(model, config.num_ranks)[rank], rank, config.threads)
        _fill(stage, stage.cut(checkpoint, arch), stage.names(), checkpoint, config)
        return StageFollower(stage, leader).commands
    parts = split_checkpoint(checkpoint, arch, model, config.num_ranks, config.quant)
    group = _join(leader, model, parts)
    decoder = PartDecoder(model, parts[rank], group, config.threads)
    _fill_part(decoder, checkpoint, arch, config)
    return TensorFollower(group, decoder, parts).commands


def _fill_part(
    decoder: PartDecoder, checkpoint: Checkpoint, arch: Arch, config: EngineConfig
) -> None:
    model, part = decoder.config, decoder.part
    weights = part.cut(stored_weights(checkpoint, arch, model), model)
    _fill(decoder, weights, part.names(model), checkpoint, config)


def _fill(
    decoder: NativeDecoder,
    weights: Iterable[tuple[str, StoredTensor]],
    names: Iterable[str],
    checkpoint: Checkpoint,
    config: EngineConfig,
) -> None:
    """Pack a part's weights, or read them as they were packed before."""
    packed, rounding = None, {"quant": config.quant, "head_bits": config.head_bits}
    if config.weight_cache:
        kind = "layers" if config.pipeline_parallel_size > 1 else "heads"
        part = f"{kind} {Launch.of().rank} of {config.num_ranks}"
        packed = PackedFile.of(
            checkpoint.path, checkpoint.files, is_mapped=config.mmap, **rounding, part=part
        )
    packing.fill(
        decoder, weights, names, quant=config.quant, head_bits=config.head_bits, packed=packed
    )
