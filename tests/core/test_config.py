"""One configuration: names and numbers are checked where they are given."""

from __future__ import annotations

import pytest

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.options import describe


def test_every_field_has_its_help() -> None:
    assert all(option.help.endswith((".", "draft_model.")) for option in describe(EngineConfig))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"draft_budget": 0}, "draft_budget must be at least 1, got 0"),
        ({"kv": "fp8"}, "unknown precision of keys and values 'fp8' .allowed: auto, fp16, fp32"),
    ],
)
def test_a_mistake_is_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**given)
