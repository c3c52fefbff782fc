"""A container's memory limit, as a budget."""

from __future__ import annotations

from forerun.core import cgroup
from forerun.core.errors import ConfigError

MARGIN = 0.05
"""Share of a limit that is left to the kernel and to short-lived memory."""


def container_budget() -> int:
    """Return the budget that a container's limit leaves after a margin. Raises ConfigError."""
    limit = cgroup.memory_limit()
    if limit is None:
        raise ConfigError(
            "memory_budget must be a size such as 600MiB here, got 'cgroup': no container limits this process "
            "(its control groups set no memory.max and no memory.limit_in_bytes)"
        )
    return limit - int(limit * MARGIN)
