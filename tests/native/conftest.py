"""These tests need the compiled kernels; without a compiler there is nothing here to test."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.model.kernels import native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = native.reason()
    if reason is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no native kernels: {reason}"))
