"""Limits of processor time and memory, read from made trees that are written as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core import cgroup

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write files of a made system below a folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"a/b": "max 100000"}, None),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "150000 100000", "a/b": "max 100000"}, 1.5),  # set for a group above
        ({"a": "150000 100000", "a/b": "50000 20000"}, 1.5),  # the narrower of two
        ({"a": "400000 100000", "a/b": "50000 20000"}, 2.5),
        ({"": "300000 100000", "a/b": "max 100000"}, 3.0),  # the top of what a container sees
        ({"a/c": "50000 100000"}, None),  # a group beside
        ({"a/b": "unreadable"}, None),
    ],
)
def test_limits_of_all_groups_above_hold(
    limits: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": OTHER + V2}
    files |= {f"sys/fs/cgroup/{group}/cpu.max": f"{text}\n" for group, text in limits.items()}
    write_files(tmp_path, files)
    assert cgroup.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("root", "path", "group"),
    [
        ("/", "/docker/x", "docker/x"),  # the whole tree is seen
        ("/docker/x", "/docker/x", ""),  # a container that sees its own group alone
        ("/docker/x", "/docker/x/y", "y"),
        ("/docker/x", "/elsewhere", ""),
        ("/", "/../x", ""),  # outside of the name space
    ],
)
def test_version_1_and_what_a_container_sees_of_the_tree(
    root: str, path: str, group: str, tmp_path: Path
) -> None:
    folder = f"sys/fs/cgroup/cpu,cpuacct/{group}"
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:/m\n3:cpu,cpuacct:{path}\n2:cpuset:/\n1:name=systemd:/\n0::/\n",
            "proc/self/mountinfo": OTHER + V1.format(root),
            f"{folder}/cpu.cfs_quota_us": "150000\n",
            f"{folder}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup.cpu_quota(tmp_path) == 1.5
    (tmp_path / folder / "cpu.cfs_quota_us").write_text("-1\n", encoding="utf-8")
    assert cgroup.cpu_quota(tmp_path) is None


MB = 1 << 20
NO_LIMIT_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"": "max"}, None),
        ({"a/b": "max"}, None),
        ({"a/b": 600 * MB}, 500 * MB),
        ({"a": 700 * MB, "a/b": "max"}, 600 * MB),  # set for a group above
        ({"a": 700 * MB, "a/b": 500 * MB}, 400 * MB),  # the narrower of two
        ({"": 300 * MB, "a/b": "max"}, 200 * MB),  # the top of what a container sees
    ],
)
def test_the_least_limit_of_memory_holds_and_idle_pages_of_files_do_not_count(
    limits: dict[str, str | int], left: int | None, tmp_path: Path
) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": OTHER + V2}
    for group, text in limits.items():
        folder = f"sys/fs/cgroup/{group}"
        files |= {
            f"{folder}/memory.max": f"{text}\n",
            f"{folder}/memory.current": f"{150 * MB}\n",
            f"{folder}/memory.stat": f"anon {100 * MB}\ninactive_file {50 * MB}\nactive_file 7\n",
        }
    write_files(tmp_path, files)
    assert cgroup.memory_left(tmp_path) == left
    assert cgroup.memory_limit(tmp_path) == (None if left is None else left + 100 * MB)


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("4:memory:/x", {"": 400 * MB}, 400 * MB),  # set for a group above
        ("5:cpu:/y\n4:memory:/x", {"": NO_LIMIT_V1, "x": 300 * MB, "y": 1}, 300 * MB),
        ("4:cpu,memory:/x", {"": NO_LIMIT_V1}, None),
        (None, {"": 600 * MB}, 600 * MB),  # its own group is not known: the top
    ],
)
def test_the_least_limit_of_memory_of_version_1(
    own: str | None, limits: dict[str, str | int], expected: int | None, tmp_path: Path
) -> None:
    files = {"proc/self/mountinfo": OTHER} | ({"proc/self/cgroup": f"{own}\n"} if own else {})
    for group, text in limits.items():
        files[f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes"] = f"{text}\n"
    write_files(tmp_path, files)
    assert cgroup.memory_limit(tmp_path) == expected


@pytest.mark.parametrize(("limit", "left"), [(400 * MB, 300 * MB), (NO_LIMIT_V1, None)])
def test_memory_left_in_version_1(limit: int | str, left: int | None, tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/x"
    write_files(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/y\n4:memory:/x\n",
            "proc/self/mountinfo": OTHER,
            f"{folder}/memory.limit_in_bytes": f"{limit}\n",
            f"{folder}/memory.usage_in_bytes": f"{160 * MB}\n",
            f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {60 * MB}\n",
            "sys/fs/cgroup/memory/y/memory.limit_in_bytes": "1\n",
        },
    )
    assert cgroup.memory_left(tmp_path) == left


def test_a_system_without_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None
    assert cgroup.memory_left(tmp_path) is None
