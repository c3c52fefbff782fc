"""A container's limit becomes a budget, whichever version of control groups says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.core import container
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

MB = 1 << 20
NO_LIMIT_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(container, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(container, "OWN", tmp_path / "own")
    monkeypatch.setattr(container, "bare_nbytes", lambda: 200 * MB)
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def limit(root: Path, group: str, name: str, text: str | int) -> None:
    (root / group).mkdir(parents=True, exist_ok=True)
    (root / group / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/", {"memory.max": 600 * MB}, 600 * MB),  # in a container: its group is the root
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": 700 * MB}, 700 * MB),
        ("0::/a/b", {"a/b/memory.max": 500 * MB, "a/memory.max": 700 * MB}, 500 * MB),
        ("4:memory:/x", {"memory/memory.limit_in_bytes": 400 * MB}, 400 * MB),
        (
            "5:cpu:/y\n4:memory:/x",
            {
                "memory/memory.limit_in_bytes": NO_LIMIT_V1,
                "memory/x/memory.limit_in_bytes": 300 * MB,
            },
            300 * MB,
        ),
        ("4:cpu,memory:/x", {"memory/memory.limit_in_bytes": NO_LIMIT_V1}, None),
        (None, {"memory.max": 600 * MB}, 600 * MB),
        (None, {}, None),
    ],
)
def test_the_least_limit_on_the_way_to_the_root_counts(
    root: Path, own: str | None, limits: dict[str, str | int], expected: int | None
) -> None:
    if own is not None:
        container.OWN.write_text(f"{own}\n")
    for path, text in limits.items():
        limit(root, str(Path(path).parent), Path(path).name, text)
    assert container.memory_limit() == expected


def test_the_budget_is_what_python_torch_and_a_margin_leave(root: Path) -> None:
    limit(root, ".", "memory.max", 600 * MB)
    config = EngineConfig(memory_budget="cgroup")
    assert config.budget_nbytes == 600 * MB - 30 * MB - 200 * MB
    limit(root, ".", "memory.max", 9000 * MB)
    assert replace(config).budget_nbytes == 370 * MB  # asked once


def test_without_a_limit_or_with_too_small_a_one_it_is_refused_in_words(root: Path) -> None:
    with pytest.raises(ConfigError, match="such as 600MiB here, got 'cgroup': no container limits"):
        EngineConfig(memory_budget="cgroup")
    limit(root, ".", "memory.max", 150 * MB)
    with pytest.raises(ConfigError, match="limit is 150 MiB, Python and torch take 200 MiB"):
        EngineConfig(memory_budget="cgroup")


def test_what_python_and_torch_take_is_measured() -> None:
    assert 50 * MB < container.bare_nbytes() < 16 << 30
