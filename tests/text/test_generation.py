"""How a model wants to be sampled, by what its files say."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.text import generation
from forerun.text.generation import ADVISED, GREEDY, from_gguf, from_hf
from forerun.weights.checkpoint import open_checkpoint

QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, GREEDY),
        ({"temperature": None, "eos_token_id": [1, 2]}, GREEDY),
        ({"do_sample": True, **QWEN}, SamplingParams(**QWEN)),
        ({"do_sample": True}, SamplingParams()),
        ({"temperature": 0.6, "min_p": 0.05}, SamplingParams(temperature=0.6, min_p=0.05)),
        ({"do_sample": False, "temperature": 0.6}, GREEDY),
        (
            {"repetition_penalty": 1.1},
            SamplingParams(temperature=0, repetition_penalty=1.1),
        ),
        (
            {"do_sample": False, "top_p": 0.5, "repetition_penalty": 1.1},
            SamplingParams(temperature=0, repetition_penalty=1.1),
        ),
    ],
)
def test_a_folder_is_sampled_as_it_says(
    config: dict[str, object], expected: SamplingParams
) -> None:
    assert from_hf(config, "x") == expected
    assert expected.max_tokens == 16


@pytest.mark.parametrize(
    "config",
    [
        {"suppress_tokens": [7]},
        {"bad_words_ids": [[7, 8]]},
        {"no_repeat_ngram_size": 3, "num_beams": 1},
        {"min_new_tokens": 0, "forced_eos_token_id": [2]},
    ],
)
def test_what_a_folder_asks_for_in_vain_is_named(
    config: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert from_hf(config, "x/generation_config.json") == GREEDY
    key = next(key for key, value in config.items() if value not in (0, 1))
    assert f"x/generation_config.json: {key} left out" in caplog.text
    caplog.clear()
    from_hf({**dict.fromkeys(generation.UNUSED), "num_beams": 1, "typical_p": 1.0}, "x")
    assert not caplog.text


def test_a_gguf_is_sampled_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_float32(gguf.Keys.General.SAMPLING_TEMP, 0.5)
    writer.add_int32(gguf.Keys.General.SAMPLING_TOP_K, 20)
    writer.add_float32(gguf.Keys.General.SAMPLING_TOP_P, 0.75)
    writer.add_float32(gguf.Keys.General.SAMPLING_MIN_P, 0.125)
    writer.add_float32(gguf.Keys.General.SAMPLING_PENALTY_REPEAT, 1.25)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    expected = {"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125}
    params = open_checkpoint(path).default_params()
    assert params == SamplingParams(**expected, repetition_penalty=1.25)
    assert from_gguf({"general.name": "x"}, "x") == GREEDY


@pytest.mark.parametrize(
    ("key", "value", "off"),
    [
        ("mirostat", 2, 0),
        ("xtc_probability", 0.5, 0.0),
        ("sequence", "tkm", ""),
        ("penalty_last_n", 64, -1),
    ],
)
def test_what_a_gguf_asks_for_in_vain_is_named(
    key: str, value: object, off: object, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"general.sampling.{key}"
    assert from_gguf({key: value}, "x.gguf") == GREEDY
    assert f"x.gguf: {key} left out" in caplog.text
    caplog.clear()
    from_gguf({key: off}, "x.gguf")
    assert not caplog.text


def test_a_family_that_is_known_is_sampled_as_its_authors_advise_unless_the_file_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "ADVISED", ADVISED)
    known = {"general.basename": "SmolLM2"}
    assert from_gguf(known, "x") == SamplingParams(temperature=0.2, top_p=0.9)
    own = {**known, "general.sampling.temp": 1.5}
    assert from_gguf(own, "x") == SamplingParams(temperature=1.5)
    assert from_gguf({"general.basename": "another"}, "x") == GREEDY


@pytest.mark.parametrize("value", [-1, "warm", [0.5]])
def test_a_wrong_value_is_named_with_its_place(value: object) -> None:
    with pytest.raises(LoadError, match=r"there: temperature must be from 0 to 100, got"):
        from_hf({"do_sample": True, "temperature": value}, "there")
