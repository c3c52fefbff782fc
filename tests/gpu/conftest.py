"""These tests need the extra `gpu`: they run in an environment of their own (make gpu), interpreted where no GPU is."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def has_gpu() -> bool:
    """Whether the kernels are compiled and run on a card: asked for, since interpreting is the proof elsewhere."""
    return os.environ.get("FORERUN_TEST_DEVICE", "cpu") != "cpu"


if not has_gpu():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported


if find_spec("triton") is None:
    collect_ignore = [
        path.name for path in HERE.glob("test_*.py") if path.name != "test_backend.py"
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name != "test_backend.py":
            item.add_marker(pytest.mark.triton)
