"""Which of the processes that torchrun started this one is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.errors import ConfigError

HINT = "torchrun --nproc-per-node {size} --no-python forerun ... --tensor-parallel-size {size}"


@dataclass(frozen=True, slots=True)
class Place:
    """A process's place among those that torchrun started, as its environment says."""

    rank: int
    size: int
    local_size: int
    """Processes on this machine."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """Read the place; without torchrun it is the only process. Raises ConfigError."""
        try:
            size = int(environment.get("WORLD_SIZE", "1"))
            local = int(environment.get("LOCAL_WORLD_SIZE", size))
            return cls(int(environment.get("RANK", "0")), size, local)
        except ValueError as error:
            raise ConfigError(
                f"RANK, WORLD_SIZE and LOCAL_WORLD_SIZE are torchrun's: {error}"
            ) from error

    def check(self, size: int) -> None:
        """Raise ConfigError unless there are as many processes as parts of the model."""
        if self.size == size:
            return
        if self.size == 1:
            raise ConfigError(
                f"--tensor-parallel-size {size} needs {size} processes: {HINT.format(size=size)}"
            )
        raise ConfigError(
            f"torchrun started {self.size} processes, but --tensor-parallel-size is {size}: give both the same number"
        )
