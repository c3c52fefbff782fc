"""These are tests of what runs on torch; without it there is nothing to test."""

from __future__ import annotations

from importlib.util import find_spec


def pytest_ignore_collect() -> bool | None:
    return True if find_spec("torch") is None else None
