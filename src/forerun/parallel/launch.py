"""The rank of this process, as torchrun's environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

HINT = "torchrun --nproc-per-node {size} --no-python forerun ... {option} {size}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Rank and sizes of a launch by torchrun."""

    rank: int
    size: int
    local_size: int
    """Processes on this machine."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """Read the environment; without torchrun this is the only process. Raises ConfigError."""
        try:
            size = int(environment.get("WORLD_SIZE", "1"))
            local = int(environment.get("LOCAL_WORLD_SIZE", size))
            return cls(int(environment.get("RANK", "0")), size, local)
        except ValueError as error:
            raise ConfigError(
                f"RANK, WORLD_SIZE and LOCAL_WORLD_SIZE are torchrun's: {error}"
            ) from error

    def check(self, config: EngineConfig) -> None:
        """Raise ConfigError unless there are as many processes as parts of the model."""
        size, is_pipeline = config.num_ranks, config.pipeline_parallel_size > 1
        option = "--pipeline-parallel-size" if is_pipeline else "--tensor-parallel-size"
        if self.size == size:
            return
        if self.size == 1:
            hint = HINT.format(size=size, option=option)
            raise ConfigError(f"{option} {size} needs {size} processes: {hint}")
        raise ConfigError(
            f"torchrun started {self.size} processes, but {option} is {size}: give both the same number"
        )
