"""What Linux's control groups leave this process: processor time (`docker --cpus 1.5`) and memory (`--memory`).

A limit holds for a group and all groups in it, so those above count too. Knows version 2 (`cpu.max`, `memory.max`) and
version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`), and containers that see a part of the tree. Knows nothing of
cores or affinity. `system` is the folder with `proc` and `sys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from forerun.core.errors import ConfigError

MARGIN = 0.05
"""Share of a limit that is left to the kernel and to short-lived memory."""
_NO_LIMIT = 1 << 60
"""Version 1 has no value for "no limit" of memory, but a number close to 2**63."""


class _Mount(NamedTuple):
    """A hierarchy: where it is mounted, from which of its groups on, its version and (version 1) its controllers."""

    point: Path
    root: PurePosixPath
    version: int
    controllers: frozenset[str]


def cpu_quota(system: Path = Path("/")) -> float | None:
    """Return the number of processors whose time this process may use; None without a limit."""
    quotas = []
    for version, group in _groups("cpu", system):
        words = (
            _words(group, "cpu.max")
            if version == 2
            else _words(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        if _are_numbers(words, 2) and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(system: Path = Path("/")) -> int | None:
    """Return the memory that this process may hold, in bytes; None without a limit."""
    return min((limit for _, _, limit in _memory_limits(system)), default=None)


def container_budget() -> int:
    """Return the memory budget that a container's limit leaves after a margin. Raises ConfigError."""
    limit = memory_limit()
    if limit is None:
        raise ConfigError(
            "memory_budget must be a size such as 600MiB here, got 'cgroup': no container limits this process "
            "(its control groups set no memory.max and no memory.limit_in_bytes)"
        )
    return limit - int(limit * MARGIN)


def memory_left(system: Path = Path("/")) -> int | None:
    """Return the bytes that may still be taken within the limits; None without one. May be negative for a moment."""
    left = []
    for version, group, limit in _memory_limits(system):
        used, idle = (
            ("memory.current", "inactive_file")
            if version == 2
            else ("memory.usage_in_bytes", "total_inactive_file")
        )
        words = _words(group, used)
        if _are_numbers(words, 1):
            # The kernel gives idle pages of files up.
            left.append(limit - int(words[0]) + _stat(group, idle))
    return min(left, default=None)


def _memory_limits(system: Path) -> Iterator[tuple[int, Path, int]]:
    """The hierarchy's version, the folder and the limit in bytes of each group that has one."""
    for version, group in _groups("memory", system):
        words = _words(group, "memory.max" if version == 2 else "memory.limit_in_bytes")
        if _are_numbers(words, 1) and int(words[0]) < _NO_LIMIT:
            yield version, group, int(words[0])


def _groups(controller: str, system: Path) -> Iterator[tuple[int, Path]]:
    """The folders of the process's groups, up to the top of what is mounted, with their hierarchy's version."""
    paths = _group_paths(system)
    for mount in _mounts(system):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        path = paths.get("" if mount.version == 2 else controller, mount.root)
        inside = path.relative_to(mount.root) if path.is_relative_to(mount.root) else None
        # Outside of what is mounted, as for a container without a name space: then its top is all there is.
        names = () if inside is None or ".." in inside.parts else inside.parts
        for depth in range(len(names), -1, -1):
            yield mount.version, mount.point.joinpath(*names[:depth])


def _group_paths(system: Path) -> dict[str, PurePosixPath]:
    """The process's group by controller; that of version 2 by the empty name."""
    paths: dict[str, PurePosixPath] = {}
    for line in _lines(system / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return paths


def _mounts(system: Path) -> Iterator[_Mount]:
    for line in _lines(system / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        point = system / fields[4].lstrip("/")
        yield _Mount(point, PurePosixPath(fields[3]), version, frozenset(kind[2].split(",")))


def _words(group: Path, *names: str) -> list[str]:
    return [word for name in names for line in _lines(group / name) for word in line.split()]


def _are_numbers(words: list[str], num: int) -> bool:
    """Whether all were there and set: `max` and -1 are no limit."""
    return len(words) == num and all(map(str.isdecimal, words))


def _stat(group: Path, name: str) -> int:
    """A value of `memory.stat`; 0 if it has none."""
    stat = dict(line.partition(" ")[::2] for line in _lines(group / "memory.stat"))
    return int(stat.get(name, 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
