"""From a configuration to this process's part of the model; only that part is packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError
from forerun.hub.names import resolve
from forerun.model import packing
from forerun.model.backends.native import MAX_ROWS, NativeDecoder
from forerun.model.loader import (
    blank_weights,
    choose_backend,
    device_of,
    read_config,
    stored_weights,
)
from forerun.parallel.follower import Commands, TensorFollower, run_commands
from forerun.parallel.group import RankGroup, connect, join, report_failure
from forerun.parallel.head import num_floats
from forerun.parallel.launch import Launch
from forerun.parallel.link import Follower, Leader
from forerun.parallel.split import Part, split_checkpoint
from forerun.parallel.tensor import PartDecoder, TensorParallel
from forerun.system.device import return_freed
from forerun.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from forerun.model.arch.base.mapping import Arch
    from forerun.model.config import ModelConfig
    from forerun.weights.base import Checkpoint


def load(checkpoint: Checkpoint, config: EngineConfig, max_len: int) -> NativeDecoder:
    """Return rank 0's model, for texts of at most `max_len` tokens, once all ranks are connected.

    Raises ConfigError, LoadError.
    """
    model, arch = _read(checkpoint, config)
    model = model.within(max_len)
    parts = split_checkpoint(checkpoint, arch, model, config.tensor_parallel_size, config.quant)
    link = _connect(checkpoint, config)
    assert isinstance(link, Leader)
    link.send(max_len)
    group = _join(link, model, parts)
    decoder = TensorParallel(model, parts, group, config.threads)
    _fill(decoder, checkpoint, arch, config)
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
    part, *_ = split_checkpoint(checkpoint, arch, model, config.tensor_parallel_size, config.quant)
    decoder = PartDecoder(model, part, num_threads=config.threads)
    packing.fill_blank(decoder, part.blank(weights, model), config.head_bits)
    return decoder


def _read(checkpoint: Checkpoint, config: EngineConfig) -> tuple[ModelConfig, Arch]:
    model, arch = read_config(checkpoint)
    if (device := device_of(config)) != "cpu":
        raise ConfigError(
            f"a model over several processes runs on their CPUs: leave out --device {device}"
        )
    choose_backend(model, device)
    return model, arch


def _connect(checkpoint: Checkpoint, config: EngineConfig) -> Leader | Follower:
    launch = Launch.of()
    launch.check(config)
    options = {
        "quant": config.quant,
        "head_bits": config.head_bits,
        "tensor_parallel_size": config.tensor_parallel_size,
    }
    return connect(launch, checkpoint.files, options)


def _join(link: Leader | Follower, model: ModelConfig, parts: Sequence[Part]) -> RankGroup:
    count = num_floats(model.hidden_size, [part.tokens for part in parts], MAX_ROWS)
    return join(Launch.of(), link, count)


def _loaded(leader: Follower, checkpoint: Checkpoint, config: EngineConfig) -> Commands:
    """Load the part of a rank above 0; return the commands that it runs."""
    model, arch = _read(checkpoint, config)
    (max_len,) = leader.receive()
    model, rank = model.within(max_len), Launch.of().rank
    parts = split_checkpoint(checkpoint, arch, model, config.tensor_parallel_size, config.quant)
    group = _join(leader, model, parts)
    decoder = PartDecoder(model, parts[rank], group, config.threads)
    _fill(decoder, checkpoint, arch, config)
    return TensorFollower(group, decoder, parts).commands


def _fill(decoder: PartDecoder, checkpoint: Checkpoint, arch: Arch, config: EngineConfig) -> None:
    model, part = decoder.config, decoder.part
    packing.fill(
        decoder,
        part.cut(stored_weights(checkpoint, arch, model), model),
        part.names(model),
        quant=config.quant,
        head_bits=config.head_bits,
    )
