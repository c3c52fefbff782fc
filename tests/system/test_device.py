"""Choices of device and threads; the report beside a measurement."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun.system import device
from tests.core.test_cgroup import write_files


@pytest.mark.parametrize(
    ("name", "chosen"), [("auto", "cpu"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:3", "cuda:3")]
)
def test_auto_is_the_cpu_and_others_are_taken_at_their_word(name: str, chosen: str) -> None:
    assert device.choose_device(name) == chosen


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "", "cpus", "cuda:-1"])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown device '{name}'"):
        device.choose_device(name)


def test_threads_are_one_a_core_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "num_cores", lambda: 5)
    assert device.num_threads() == 5
    assert device.num_threads(3) == 3
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        device.num_threads(0)


def test_cores_are_within_what_the_process_may_use() -> None:
    assert 1 <= device.num_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("siblings", "usable", "quota", "cores"),
    [
        ({0: "0", 1: "1", 2: "2", 3: "3"}, {0, 1, 2, 3}, None, 4),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 1, 2, 3}, None, 2),  # hyper-threads
        (
            {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"},
            {1, 2},
            None,
            2,
        ),  # taskset, one thread of each core
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {0, 1}, None, 1),  # taskset, both threads of one
        (
            {0: "0,4", 1: "1,5", 2: "2", 3: "3", 4: "0,4", 5: "1,5"},
            set(range(6)),
            None,
            4,
        ),  # hybrid
        ({}, {0, 3}, None, 2),  # nothing is told of cores
        ({0: "0", 1: "1", 2: "2", 3: "3"}, {0, 1, 2, 3}, "150000 100000", 2),  # --cpus 1.5
        ({0: "0", 1: "1", 2: "2", 3: "3"}, {0, 1, 2, 3}, "50000 100000", 1),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, {0, 1}, "300000 100000", 2),
    ],
)
def test_threads_are_physical_cores_within_affinity_and_quota(
    siblings: dict[int, str],
    usable: set[int],
    quota: str | None,
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{names}\n"
        for cpu, names in siblings.items()
    }
    if quota is not None:
        files["proc/self/cgroup"] = "0::/\n"
        files["sys/fs/cgroup/cpu.max"] = f"{quota}\n"
    write_files(tmp_path, files)
    monkeypatch.setattr(device.processes, "usable_cpus", lambda: usable)
    assert device.num_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("nodes", "packages", "usable", "cpus"),
    [
        (["0-7"], {cpu: cpu // 4 for cpu in range(8)}, range(8), range(8)),  # one memory
        (["0-3", "4-7"], {cpu: cpu // 4 for cpu in range(8)}, range(8), range(4)),
        (["0-3", "4-7"], {cpu: cpu // 4 for cpu in range(8)}, range(2, 8), range(4, 8)),  # taskset
        (["0-3", "4-7"], {cpu: cpu // 4 for cpu in range(8)}, range(4), range(4)),  # numactl
        (["0-1", "2-3", "4-5", "6-7"], {cpu: cpu // 4 for cpu in range(8)}, range(8), range(4)),
        (["0-3", "4-7"], {cpu: cpu for cpu in range(8)}, range(8), range(4)),  # a virtual machine's
        (["0,2,4,6", "1,3,5,7"], {}, range(8), {0, 2, 4, 6}),  # nothing is told of sockets
    ],
)
def test_one_socket_is_taken_where_there_are_several(
    nodes: list[str],
    packages: dict[int, int],
    usable: range,
    cpus: Iterable[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = "sys/devices/system/node/node{}/cpulist"
    package = "sys/devices/system/cpu/cpu{}/topology/physical_package_id"
    files = {node.format(i): f"{text}\n" for i, text in enumerate(nodes)}
    files |= {package.format(cpu): f"{number}\n" for cpu, number in packages.items()}
    write_files(tmp_path, files)
    monkeypatch.setattr(device.processes, "usable_cpus", lambda: set(usable))
    assert device.socket_cpus(tmp_path) == set(cpus)


def test_a_thread_stays_on_its_socket_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    monkeypatch.setattr(device.processes, "usable_cpus", lambda: before)
    monkeypatch.setattr(device, "socket_cpus", lambda: before)
    assert device.stay_on_one_socket() is None
    monkeypatch.setattr(device, "socket_cpus", lambda: one)
    text = device.stay_on_one_socket() if len(before) > 1 else None
    try:
        assert text is None or f"1 of {len(before)} processors" in text
        assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, before)


def test_the_report_is_json_and_complete() -> None:
    report = device.report()
    assert json.loads(json.dumps(report)) == report
    assert report["cores"] == device.num_cores()
    assert {"forerun", "python", "cpu", "isa", "native"} <= report.keys()
