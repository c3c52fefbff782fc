"""These tests need the compiled kernels; without a compiler there is nothing here to test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forerun.kernels import native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = native.reason()
    if reason is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no native kernels: {reason}"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny torch references are fastest on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
