"""Choices of device and threads; the report beside a measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forerun.core import device
from forerun.core.errors import ConfigError
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
        files["proc/self/mountinfo"] = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        files["sys/fs/cgroup/cpu.max"] = f"{quota}\n"
    write_files(tmp_path, files)
    monkeypatch.setattr(device.system, "usable_cpus", lambda: usable)
    assert device.num_cores(tmp_path) == cores


def test_the_report_is_json_and_complete() -> None:
    report = device.report()
    assert json.loads(json.dumps(report)) == report
    assert report["cores"] == device.num_cores()
    assert {"forerun", "python", "cpu", "isa", "native"} <= report.keys()
