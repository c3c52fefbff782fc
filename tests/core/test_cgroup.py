"""Limits of processor time and memory, read from made trees that are written as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core import cgroup

MB = 1 << 20


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
    files = {"proc/self/cgroup": "0::/a/b\n"}
    files |= {f"sys/fs/cgroup/{group}/cpu.max": f"{text}\n" for group, text in limits.items()}
    write_files(tmp_path, files)
    assert cgroup.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/docker/x", "docker/x"),  # the whole tree is seen
        ("/docker/x", ""),  # a container that sees its own group alone
        ("/../x", ""),  # outside of the name space
    ],
)
def test_what_a_container_sees_of_the_tree(path: str, group: str, tmp_path: Path) -> None:
    others = "4:memory:/m\n1:name=systemd:/\n"
    files = {"proc/self/cgroup": f"{others}0::{path}\n"}
    write_files(tmp_path, files | {f"sys/fs/cgroup/{group}/cpu.max": "150000 100000\n"})
    assert cgroup.cpu_quota(tmp_path) == 1.5


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
    files = {"proc/self/cgroup": "0::/a/b\n"}
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


def test_a_system_without_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None
    assert cgroup.memory_left(tmp_path) is None
