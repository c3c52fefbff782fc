"""What all tests share: the hypothesis profiles, and the default model where it can be had."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from forerun.core.errors import LoadError
from forerun.formats import hub
from forerun.tune import profile

# No deadline: the machines that run this are shared. In CI every run tries the same examples.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# Of a shell's background job the interrupt is ignored, and so it would be in the programs that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread: for tiny models a second one only waits.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Commands and tests of the row law choose their own number; it ends with the test."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was tuned on this machine does not change a test."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched once; without it the test is skipped, in CI it fails."""
    try:
        return hub.pull(hub.DEFAULT_MODEL)
    except LoadError as error:
        reason = f"the default model cannot be had: {error}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
