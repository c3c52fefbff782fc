"""The rank of this process, as torchrun's environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

OPTION = "--tensor-parallel-size"
HINT = f"torchrun --nproc-per-node {{0}} --no-python forerun ... {OPTION} {{0}}"


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
        size = config.tensor_parallel_size
        if self.size == size:
            return
        if self.size == 1:
            raise ConfigError(f"{OPTION} {size} needs {size} processes: {HINT.format(size)}")
        raise ConfigError(
            f"torchrun started {self.size} processes, but {OPTION} is {size}: give both the same number"
        )
