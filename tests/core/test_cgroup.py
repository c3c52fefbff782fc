"""Limits of processor time, read from made trees that are written as Linux writes them."""

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


def test_a_system_without_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
