"""Some seconds of threads, signals and replaced files; before a release, five minutes: `tests/engine/stress.py`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.model.kernels import native
from tests.engine import stress

SECONDS = 6.0
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Threads take turns much more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_get_all_of_their_streams_and_leave_nothing(tiny_gguf: Path) -> None:
    found = stress.streams(tiny_gguf, SECONDS)
    assert min(found[kind] for kind in ("read", "closed", "dropped", "left")) > 0


def test_sinks_that_raise_cost_others_nothing(tiny_gguf: Path) -> None:
    found = stress.sinks(tiny_gguf, SECONDS)
    assert found["raised KeyboardInterrupt"] > 0
    assert found["CancelledError"] > 0
    assert not found["raised CancelledError"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timers here")
def test_a_time_limit_at_any_moment_leaves_nothing(tiny_gguf: Path) -> None:
    found = stress.signals(tiny_gguf, SECONDS)
    assert min(found[kind] for kind in ("limited", "answered", "neighbour")) > 0


@pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
def test_replaced_weights_answer_at_once(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    assert stress.files(tiny_gguf, SECONDS, tmp_path)["starts"] > 4
