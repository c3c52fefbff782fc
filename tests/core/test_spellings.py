"""Every row of the tables of other engines' names: what it becomes, or that it is noted, or that it is refused."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.core import registry, spellings
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.spellings import CONFIGURATION, DRAFTING, METHODS, SHORT, Spelling
from forerun.drafting.given import option_names

ROWS = {name: one for names in CONFIGURATION.values() for name, one in names.items()}
DRAFT_ROWS = {name: one for names in DRAFTING.values() for name, one in names.items()}
NOTED = [name for name, one in ROWS.items() if not one.becomes and one.values != {}]
STRICT = [name for name, one in ROWS.items() if one.values is not None]
FIELDS = {field.name for field in dataclasses.fields(EngineConfig)}


@pytest.fixture
def notes(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    spellings._warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="forerun"):
        yield caplog


def a_value(one: Spelling) -> object:
    return next(iter(one.values)) if one.values else 7


def test_every_row_leads_to_something_that_exists() -> None:
    assert {name for one in ROWS.values() for name in one.becomes} <= FIELDS | {"tokenizer"}
    drafters = registry.names("drafters")
    options = {option for name in drafters for option in option_names(name)}
    assert {name for one in DRAFT_ROWS.values() for name in one.becomes} <= options
    assert {*METHODS.values()} <= {*drafters}
    assert {one.implies for one in DRAFT_ROWS.values()} <= {*drafters, ""}
    assert {*SHORT.values()} <= ROWS.keys() | DRAFT_ROWS.keys()
    assert not ROWS.keys() & FIELDS
    assert all(one.becomes or one.why for one in (*ROWS.values(), *DRAFT_ROWS.values()))


@pytest.mark.parametrize("name", NOTED)
def test_a_name_without_effect_changes_nothing_and_is_noted_once(name, notes) -> None:
    given_value = a_value(ROWS[name])
    assert EngineConfig.of(**{name: given_value}) == EngineConfig()
    assert EngineConfig.of(**{name: given_value}) == EngineConfig()
    (note,) = notes.messages
    assert note.startswith(f"{name}={given_value!r} has no effect: ")


@pytest.mark.parametrize("name", sorted(ROWS))
def test_none_is_not_given(name, notes) -> None:
    assert EngineConfig.of(**{name: None}) == EngineConfig()
    assert notes.messages == []


@given(name=st.sampled_from(STRICT), value=st.text(min_size=1, max_size=8) | st.integers(2, 99))
def test_a_value_that_cannot_be_had_is_quoted(name: str, value: object) -> None:
    assume(str(value).lower() not in (ROWS[name].values or {}))
    with pytest.raises(ConfigError) as caught:
        EngineConfig.of(**{name: value})
    assert f"{name}={value!r} is not possible here: " in str(caught.value)


@pytest.mark.parametrize(
    ("given_keys", "meant"),
    [
        ({"max_num_batched_tokens": 512}, {"prefill_chunk": 512}),
        ({"chunked_prefill_size": "64"}, {"prefill_chunk": 64}),
        ({"kv_cache_dtype": "float16"}, {"kv": "fp16"}),
        ({"cache_type_k": "f16", "cache_type_v": "f16"}, {"kv": "fp16"}),
        ({"quantization": "int8"}, {"quant": "int8"}),
        ({"quantization": "gguf"}, {}),
        ({"n_ctx": 512, "n_threads": 2}, {"max_model_len": 512, "threads": 2}),
        ({"context_length": 512, "max_running_requests": 3}, {"max_model_len": 512, "max_num_seqs": 3}),
        ({"model_path": "a.gguf"}, {"model": "a.gguf"}),
        ({"device_map": "cpu"}, {"device": "cpu"}),
        ({"draft_min": 3}, {"min_draft": 3}),
        ({"tokenizer": "smollm2-135m-instruct"}, {}),
        ({"seed": 3}, {"seed": 3}),
        ({"max_num_batched_tokens": 256, "prefill_chunk": 256}, {}),
        ({"-tp": "1", "--trust-remote-code": True, "--no-enable-prefix-caching": False}, {}),
    ],
)  # fmt: skip
def test_names_with_a_meaning_are_mapped(given_keys: dict, meant: dict) -> None:
    assert EngineConfig.of(**given_keys) == EngineConfig(**meant)


@pytest.mark.parametrize(
    ("given_keys", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not possible here: .*allowed: 1"),
        ({"quantization": "awq"}, "quantization='awq' is not possible here: .*quant rounds them"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8' is not possible here: .*fp16"),
        ({"enable_lora": True}, "enable_lora=True is not possible here"),
        ({"tokenizer": "b"}, "tokenizer='b' is not possible here: .*its own"),
        ({"max_num_batched_tokens": 64, "prefill_chunk": 32}, "max_num_batched_tokens.*not both"),
        ({"cache_type_k": "f16", "cache_type_v": "f32"}, "cache_type_k or cache_type_v, not both"),
        ({"n_ctx": "many"}, "n_ctx must be a whole number or none, got 'many'"),
        ({"gpu_memory_utilisation": 0.9}, "did you mean 'gpu_memory_utilization'"),
        ({"speculative_config": 3}, "must be a mapping or its JSON, got 3"),
        ({"speculative_config": "{"}, "speculative_config is not JSON"),
    ],
)
def test_a_mistake_is_said_in_one_line(given_keys: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        EngineConfig.of(**given_keys)
    assert "\n" not in str(caught.value)
