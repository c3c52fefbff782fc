"""A container's memory limit, as a budget: cgroups of version 2 and 1."""

from __future__ import annotations

from pathlib import Path

from forerun.core import sizes
from forerun.core.device import bare_nbytes
from forerun.core.errors import ConfigError

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60
"""Version 1 has no value for "no limit", but a number close to 2**63."""
MARGIN = 0.05
"""Share of a limit that is left to the kernel and to short-lived memory."""


def container_budget() -> int:
    """Return the budget that a container's limit leaves after Python, torch and a margin. Raises ConfigError."""
    limit = memory_limit()
    if limit is None:
        raise ConfigError(
            "memory_budget must be a size such as 600MiB here, got 'cgroup': no container limits this process "
            f"(no memory.max and no memory.limit_in_bytes below {ROOT} does)"
        )
    bare = bare_nbytes()
    budget = limit - int(limit * MARGIN) - bare
    if budget <= 0:
        raise ConfigError(
            f"memory_budget must have room, got 'cgroup': the container's limit is {sizes.mebibytes(limit)}, Python "
            f"and torch take {sizes.mebibytes(bare)} of it; give the container more"
        )
    return budget


def memory_limit() -> int | None:
    """Return the least limit of this process's control group and those above it, in bytes; None without one."""
    limits = []
    for folder, name in _groups():
        for group in (folder, *folder.parents):
            if group.is_relative_to(ROOT) and (limit := _number(group / name)) is not None:
                limits.append(limit)
    return min(limits, default=None)


def _groups() -> list[tuple[Path, str]]:
    """Return where the limits may be: a container often sees its own group as the root."""
    groups = [(ROOT, "memory.max"), (ROOT / "memory", "memory.limit_in_bytes")]
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups.append((ROOT / path.lstrip("/"), "memory.max"))
        elif "memory" in controllers.split(","):
            groups.append((ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
    return groups


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT else None
