"""A container's limit becomes a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core import cgroup
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

MB = 1 << 20


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes of the container's limit; empty without one."""
    limits: dict[str, int] = {}
    monkeypatch.setattr(cgroup, "memory_limit", lambda: limits.get("limit"))
    return limits


def test_the_budget_is_what_a_margin_leaves(limit: dict[str, int]) -> None:
    limit["limit"] = 600 * MB
    config = EngineConfig(memory_budget="cgroup")
    assert config.budget_nbytes == 570 * MB
    limit["limit"] = 9000 * MB
    assert replace(config).budget_nbytes == 570 * MB  # asked once


def test_without_a_limit_it_is_refused_in_words(limit: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="such as 600MiB here, got 'cgroup': no container limits"):
        EngineConfig(memory_budget="cgroup")
