"""How much processor time Linux's control groups leave this process: what `docker --cpus 1.5` sets.

A limit holds for a group and all groups in it, so those above count too. Knows version 2 (`cpu.max`) and version 1
(`cpu.cfs_quota_us`), and containers that see a part of the tree. Knows nothing of cores or affinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Mount(NamedTuple):
    """A hierarchy: where it is mounted, from which of its groups on, its version and (version 1) its controllers."""

    point: Path
    root: PurePosixPath
    version: int
    controllers: frozenset[str]


def cpu_quota(system: Path = Path("/")) -> float | None:
    """Return the number of processors whose time this process may use; None without a limit.

    `system` is the folder with `proc` and `sys`.
    """
    limits = [
        limit
        for version, group in _groups(system)
        if (limit := (_limit_2 if version == 2 else _limit_1)(group)) is not None
    ]
    return min(limits, default=None)


def _groups(system: Path) -> Iterator[tuple[int, Path]]:
    """The folders of the process's groups, up to the top of what is mounted, with their hierarchy's version."""
    paths = list(_own_paths(system))
    for mount in _mounts(system):
        for controllers, path in paths:
            if (mount.version == 2) != (not controllers):
                continue
            if mount.version == 1 and not ("cpu" in controllers and "cpu" in mount.controllers):
                continue
            inside = path.relative_to(mount.root) if path.is_relative_to(mount.root) else None
            # Outside of what is mounted, as for a container without a name space: then its top is all there is.
            names = () if inside is None or ".." in inside.parts else inside.parts
            for depth in range(len(names), -1, -1):
                yield mount.version, mount.point.joinpath(*names[:depth])


def _own_paths(system: Path) -> Iterator[tuple[frozenset[str], PurePosixPath]]:
    """The process's group in each hierarchy, with its controllers; version 2 names none."""
    for line in _lines(system / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        yield frozenset(filter(None, controllers.split(","))), PurePosixPath(path)


def _mounts(system: Path) -> Iterator[_Mount]:
    for line in _lines(system / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        point = system / fields[4].lstrip("/")
        yield _Mount(point, PurePosixPath(fields[3]), version, frozenset(kind[2].split(",")))


def _limit_2(group: Path) -> float | None:
    words = " ".join(_lines(group / "cpu.max")).split()
    return _share(*words) if len(words) == 2 else None


def _limit_1(group: Path) -> float | None:
    quota, period = (_lines(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _share(quota[0], period[0]) if quota and period else None


def _share(quota: str, period: str) -> float | None:
    """Microseconds of processor time in a period; `max` and -1 are no limit."""
    if not (quota.isdecimal() and period.isdecimal() and int(period) > 0):
        return None
    return int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
