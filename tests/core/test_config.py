"""One configuration: names and numbers are checked where they are given, other systems' names are read."""

from __future__ import annotations

import pytest

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.options import describe


def test_every_field_has_its_help() -> None:
    assert all(option.help.endswith((".", "draft_model.")) for option in describe(EngineConfig))


def test_keywords_change_fields_of_a_name_or_of_a_configuration() -> None:
    config = EngineConfig.of("a.gguf", head_bits=4)
    assert config == EngineConfig(model="a.gguf", head_bits=4)
    assert EngineConfig.of(config, model="b.gguf") == EngineConfig(model="b.gguf", head_bits=4)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"assistant_model": "s.gguf"}, {"draft_options": {"assistant_model": "s.gguf"}}),
        ({"num_assistant_tokens": 5}, {"draft_options": {"num_assistant_tokens": 5}}),
        ({"speculative_config": {"method": "ngram"}}, {"drafter": {"method": "ngram"}}),
        (dict.fromkeys(("assistant_model", "speculative_config")), {}),
    ],
)
def test_other_systems_names_are_read(given: dict, meant: dict) -> None:
    assert EngineConfig.of(**given) == EngineConfig(**meant)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head_bit": 4}, "unknown option 'head_bit': did you mean 'head_bits'"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"draft_budget": 0}, "draft_budget must be at least 1, got 0"),
        ({"kv": "fp8"}, "unknown precision of keys and values 'fp8' .allowed: auto, fp16, fp32"),
        ({"drafter": "suffix", "speculative_config": {}}, "not both"),
    ],
)
def test_a_mistake_is_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.of(**given)
