"""What Linux's control groups leave this process: processor time (`docker --cpus 1.5`) and memory (`--memory`).

A limit holds for a group and all groups in it, so those above count too. Of version 2 alone, where systems mount it.
Knows nothing of cores or affinity. `system` is the folder with `proc` and `sys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forerun.core.errors import ConfigError

MARGIN = 0.05
"""Share of a limit that is left to the kernel and to short-lived memory."""


def cpu_quota(system: Path = Path("/")) -> float | None:
    """Return the number of processors whose time this process may use; None without a limit."""
    quotas = []
    for group in _groups(system):
        quota, period = [*_numbers(group / "cpu.max"), None, None][:2]
        if quota is not None and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(system: Path = Path("/")) -> int | None:
    """Return the memory that this process may hold, in bytes; None without a limit."""
    limits = [number for group in _groups(system) for number in _numbers(group / "memory.max")]
    return min(limits, default=None)


def container_budget() -> int:
    """Return the memory budget that a container's limit leaves after a margin. Raises ConfigError."""
    limit = memory_limit()
    if limit is None:
        raise ConfigError(
            "memory_budget must be a size such as 600MiB here, got 'cgroup': no container limits this process "
            "(its control groups, of version 2, set no memory.max)"
        )
    return limit - int(limit * MARGIN)


def memory_left(system: Path = Path("/")) -> int | None:
    """Return the bytes that may still be taken within the limits; None without one. May be negative for a moment."""
    left = []
    for group in _groups(system):
        limit, used = _numbers(group / "memory.max"), _numbers(group / "memory.current")
        if limit and used:
            stat = dict(line.partition(" ")[::2] for line in _lines(group / "memory.stat"))
            # The kernel gives idle pages of files up.
            left.append(limit[0] - used[0] + int(stat.get("inactive_file", 0)))
    return min(left, default=None)


def _groups(system: Path) -> Iterator[Path]:
    """The folders of the process's group and of those above; of a container that sees its own alone, that one."""
    top = system / "sys/fs/cgroup"
    own = [line[4:] for line in _lines(system / "proc/self/cgroup") if line.startswith("0::/")]
    group = top / own[0] if own and ".." not in own[0] else top
    if not group.is_dir():
        group = top
    yield group
    while group != top:
        group = group.parent
        yield group


def _numbers(path: Path) -> list[int]:
    """Read a file's numbers; none of a file that is missing or has a word: `max` means no limit."""
    words = [word for line in _lines(path) for word in line.split()]
    return [int(word) for word in words] if all(map(str.isdecimal, words)) else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
