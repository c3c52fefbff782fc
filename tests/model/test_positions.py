"""Rotary settings of published configs: the frequencies are those of transformers, and how long a text may be."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from forerun.core.batch import Segment
from forerun.core.config import EngineConfig
from forerun.core.errors import CapacityError
from forerun.engine.planner import max_len_of
from forerun.model.arch.base.rope import rope_from_gguf, rope_from_hf
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig, RopeConfig
from tests.model.test_families import TOKENS, assert_close
from tests.model.tiny import (
    MemoryCheckpoint,
    checkpoint_of,
    hf_logits,
    hf_model,
    load_torch,
    logits_of,
    prefill,
)


class Published(NamedTuple):
    """What a repository's config.json says of positions."""

    head_dim: int
    longest: int
    theta: float
    scaling: Mapping[str, Any]
    usable: int
    """Tokens of a text at most."""


def yarn(factor: float, original: int, **others: Any) -> dict[str, Any]:
    return {
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        **others,
    }


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
CONFIGS = {
    # Qwen's model cards add the scaling, and leave `max_position_embeddings` as it is.
    "Qwen2.5-7B-Instruct": Published(128, 32_768, 1e6, yarn(4.0, 32_768), 131_072),
    "Qwen3-8B": Published(128, 40_960, 1e6, yarn(4.0, 32_768), 131_072),
    "Qwen3-30B-A3B-2507 at 1M": Published(128, 262_144, 1e7, yarn(4.0, 262_144), 1_048_576),
    "gpt-oss-20b": Published(
        64,
        131_072,
        150_000.0,
        yarn(32.0, 4096, beta_fast=32.0, beta_slow=1.0, truncate=False),
        131_072,
    ),
    "OLMo-3": Published(
        128, 65_536, 5e5, yarn(8.0, 8192, attention_factor=1.2079441541679836), 65_536
    ),
    "Llama-3.1-8B": Published(128, 131_072, 5e5, LLAMA3 | {"factor": 8.0}, 131_072),
    "Llama-3.2-1B": Published(64, 131_072, 5e5, LLAMA3 | {"factor": 32.0}, 131_072),
    "EXAONE-4.0-32B": Published(128, 131_072, 1e6, LLAMA3 | {"factor": 16.0}, 131_072),
    "internlm3-8b": Published(128, 32_768, 5e7, {"rope_type": "dynamic", "factor": 6.0}, 32_768),
    "gemma-3-4b": Published(256, 131_072, 1e6, {"rope_type": "linear", "factor": 8.0}, 131_072),
    "Llama-2 with dynamic NTK": Published(128, 4096, 1e4, {"type": "dynamic", "factor": 2.0}, 4096),
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.01 * i for i in range(48)],
    "long_factor": [1.0 + 1.3 * i for i in range(48)],
}


def settings_of(published: Published, **others: Any) -> Settings:
    config = {
        "max_position_embeddings": published.longest,
        "rope_theta": published.theta,
        "rope_scaling": dict(published.scaling),
        **others,
    }
    return Settings(MemoryCheckpoint("hf", "LlamaForCausalLM", config, {}))  # type: ignore[arg-type]


def theirs(published: Published, length: int | None = None, **others: Any) -> tuple[Any, float]:
    """Inverse frequencies and factor of transformers, which may change a config's dictionaries."""
    config = transformers.LlamaConfig(
        head_dim=published.head_dim,
        max_position_embeddings=published.longest,
        rope_theta=published.theta,
        rope_scaling=dict(published.scaling),
        **others,
    )
    kind = config.rope_parameters["rope_type"]
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return frequencies.numpy(), factor


def assert_same(ours: RopeConfig, expected: tuple[Any, float]) -> None:
    np.testing.assert_allclose(ours.inverse_frequencies(), expected[0], rtol=1e-6)
    assert ours.attention_factor == pytest.approx(expected[1], rel=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_published_settings_mean_what_they_do_in_transformers(name: str) -> None:
    published = CONFIGS[name]
    settings = settings_of(published)
    given = settings.get("rope_scaling")
    assert_same(rope_from_hf(settings, published.head_dim, given, {}), theirs(published))
    assert settings.size("max_position") == published.usable


@pytest.mark.parametrize(("served", "length"), [(4096, 4096), (4097, 4097), (131_072, 131_072)])
def test_longropes_factors_are_those_of_a_text_that_fills_the_served_context(
    served: int, length: int
) -> None:
    """Phi-3's, with 4,096 tokens at first and 131,072 now."""
    published = Published(96, 131_072, 1e4, LONGROPE, 131_072)
    original = {"original_max_position_embeddings": 4096}
    settings = settings_of(published, **original)
    rope = rope_from_hf(settings, 96, settings.get("rope_scaling"), {})
    assert_same(rope.within(served), theirs(published, length, **original))


@pytest.mark.parametrize("is_server", [False, True])
def test_unasked_longropes_context_is_the_original_one(is_server: bool) -> None:
    settings = settings_of(
        Published(96, 131_072, 1e4, LONGROPE, 131_072), original_max_position_embeddings=2048
    )
    rope = rope_from_hf(settings, 96, settings.get("rope_scaling"), {})
    model = ModelConfig("phi3", 8, 32, 32, 1, 1, 1, 96, 131_072, rope=rope)
    asked = EngineConfig(model="phi", is_server=is_server)
    assert max_len_of(asked, model) == 2048
    assert max_len_of(replace(asked, max_model_len=8192), model) == 8192


@pytest.mark.parametrize("given", [32_768, 131_072])
def test_yarn_in_a_gguf_makes_the_context_as_long(given: int) -> None:
    prefix = "qwen3."
    config = {
        f"{prefix}context_length": given,
        f"{prefix}rope.freq_base": 1e6,
        f"{prefix}rope.scaling.type": "yarn",
        f"{prefix}rope.scaling.factor": 4.0,
        f"{prefix}rope.scaling.original_context_length": 32_768,
    }
    settings = Settings(MemoryCheckpoint("gguf", "qwen3", config, {}))  # type: ignore[arg-type]
    assert_same(rope_from_gguf(settings, 128, {}), theirs(CONFIGS["Qwen2.5-7B-Instruct"]))
    assert settings.size("max_position") == 131_072


def test_hunyuans_alpha_stretches_theta_at_any_length() -> None:
    parameters = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 5000.0}
    model = hf_model("hunyuan", rope_parameters=parameters)
    expected = hf_logits(model, TOKENS)
    assert (expected - hf_logits(hf_model("hunyuan"), TOKENS)).abs().max() > 0.01
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), expected)


def test_dynamic_ntk_ends_where_it_would_change_the_angles() -> None:
    """Up to the model's context it is plain rope; longer texts are refused."""
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5000.0}
    model = hf_model("llama", head_dim=16, max_position_embeddings=21, rope_parameters=scaling)
    decoder = load_torch(checkpoint_of(model))
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))
    with pytest.raises(CapacityError, match="context of 21 tokens"):
        logits_of(decoder, decoder.new_cache(1, 64), Segment(0, 0, (*TOKENS, 1)))


def test_a_text_may_be_as_long_as_yarn_makes_it() -> None:
    scaling = {"rope_theta": 5000.0, "rope_type": "yarn", **yarn(4.0, 8)}
    model = hf_model("qwen3", max_position_embeddings=10, rope_parameters=scaling)
    decoder = load_torch(checkpoint_of(model))
    assert decoder.config.max_position == 32
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


def test_command_r_is_as_long_as_it_was_trained() -> None:
    checkpoint = checkpoint_of(hf_model("cohere"))
    published = replace(checkpoint, config={**checkpoint.config, "model_max_length": 8192})
    assert load_torch(checkpoint).config.max_position == 512
    assert load_torch(published).config.max_position == 8192


def test_internlm3_is_llama() -> None:
    """Its folders name a class of their own, with code that transformers no longer needs."""
    model = hf_model("internlm3")
    checkpoint = replace(checkpoint_of(model), architecture="InternLM3ForCausalLM")
    decoder = load_torch(checkpoint)
    assert decoder.config.family == "llama"
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))
