"""Choices of device and threads; the report beside a measurement."""

from __future__ import annotations

import json
import os

import pytest
import torch

from forerun.core import device
from forerun.core.errors import ConfigError


@pytest.mark.parametrize("has_cuda", [False, True])
def test_auto_is_the_cpu_and_says_that_cuda_can_be_asked_for(
    has_cuda: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert device.choose_device() == device.choose_device("auto") == torch.device("cpu")
    assert ["--device cuda" in message for message in caplog.messages] == [True] * 2 * has_cuda
    caplog.clear()
    assert device.choose_device("cpu") == torch.device("cpu")
    assert not caplog.messages


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        device.choose_device(name)


def test_threads_are_set_and_checked() -> None:
    before = torch.get_num_threads()
    try:
        assert device.set_threads(1) == torch.get_num_threads() == 1
        assert device.set_threads() == torch.get_num_threads() == device.num_cores()
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        device.set_threads(0)


def test_cores_are_within_what_the_process_may_use() -> None:
    assert 1 <= device.num_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "num_cpus"),
    [("max 100000", 1 << 16), ("150000 100000", 2), ("200000 100000", 2), (None, 1 << 16)],
)
def test_a_container_limit_is_rounded_up(
    limit: str | None, num_cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_read", lambda path: limit)
    assert device._cpu_quota() == num_cpus


def test_the_report_is_json_and_complete() -> None:
    report = device.report()
    assert json.loads(json.dumps(report)) == report
    assert report["torch"] == torch.__version__
    assert report["cores"] == device.num_cores()
    assert {"python", "cpu", "isa", "threads", "cuda", "native"} <= report.keys()
