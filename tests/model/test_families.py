"""Every family computes what its Hugging Face model computes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Sequence
from typing import Any

import torch

from forerun.core import tree
from forerun.core.batch import Segment
from tests.model.tiny import (
    FAMILIES,
    VOCAB,
    YARN,
    checkpoint_of,
    hf_logits,
    hf_model,
    load_torch,
    logits_of,
    prefill,
)

TOKENS = tuple(
    int(t) for t in torch.randint(0, VOCAB, (21,), generator=torch.Generator().manual_seed(5))
)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_equals_hugging_face(family: str) -> None:
    model = hf_model(family)
    expected = hf_logits(model, TOKENS)
    assert expected.std() > 0.1
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_step_by_step_equals_hugging_face(family: str) -> None:
    model = hf_model(family)
    expected = hf_logits(model, TOKENS)
    decoder = load_torch(checkpoint_of(model))
    cache = decoder.new_cache(1, len(TOKENS))
    for position, token in enumerate(TOKENS):
        logits = logits_of(decoder, cache, Segment(0, position, (token,)))
        assert_close(logits[0], expected[position])
        cache.keep(0, [0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_equals_each_of_its_paths(family: str) -> None:
    model = hf_model(family)
    prompt, nodes = TOKENS[:10], TOKENS[10:]
    parents = (-1, 0, 0, -1, 1, 2, 2, 4, 3, 3, 7)
    decoder = load_torch(checkpoint_of(model))
    cache = decoder.new_cache(1, 64)
    logits_of(decoder, cache, Segment(0, 0, prompt))
    cache.keep(0, range(len(prompt)))
    logits = logits_of(decoder, cache, Segment(0, len(prompt), nodes, parents))
    for node in range(len(nodes)):
        path = [nodes[i] for i in tree.path_to(node, parents)]
        assert_close(logits[node], hf_logits(model, [*prompt, *path])[-1])


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 3.0},
        LLAMA3,
        YARN,
        {**YARN, "attention_factor": 1.3},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 4, "beta_slow": 2},
    ],
    ids=["linear", "llama3", "yarn", "yarn-factor", "yarn-mscale"],
)
def test_rope_scaling_equals_hugging_face(scaling: dict[str, Any]) -> None:
    parameters = {"rope_theta": 5000.0, **scaling}
    model = hf_model("llama", head_dim=16, rope_parameters=parameters)
    expected = hf_logits(model, TOKENS)
    assert (expected - hf_logits(hf_model("llama", head_dim=16), TOKENS)).abs().max() > 0.01
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), expected)


def longrope(num_factors: int, original: int) -> dict[str, Any]:
    return {
        "rope_theta": 5000.0,
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * i for i in range(num_factors)],
        "long_factor": [2.0 + 0.5 * i for i in range(num_factors)],
        "original_max_position_embeddings": original,
    }


@pytest.mark.parametrize(("original", "partial"), [(16, 1.0), (512, 1.0), (16, 0.5)])
def test_longrope_equals_hugging_face_beyond_the_original_length(
    original: int, partial: float
) -> None:
    parameters = longrope(int(4 * partial), original) | {"partial_rotary_factor": partial}
    model = hf_model("phi3", rope_parameters=parameters, original_max_position_embeddings=original)
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize(("max_len", "text", "is_short"), [(21, 21, True), (22, 22, False)])
def test_the_served_context_chooses_among_longropes_factors(
    max_len: int, text: int, is_short: bool
) -> None:
    """Up to the original length they are those of a short text in transformers, beyond it those of a long one."""
    model = hf_model("phi3", rope_parameters=longrope(4, 21), original_max_position_embeddings=21)
    tokens = (*TOKENS, 7)[:text]
    decoder = load_torch(checkpoint_of(model), max_len=max_len)
    assert decoder.config.max_position == (21 if is_short else 512)
    assert_close(prefill(decoder, tokens), hf_logits(model, tokens))


def test_older_spelling_of_rope_settings() -> None:
    model = hf_model("llama", head_dim=16, rope_parameters={"rope_theta": 5000.0, **LLAMA3})
    checkpoint = checkpoint_of(model)
    parameters = dict(checkpoint.config["rope_parameters"])
    config = dict(checkpoint.config) | {
        "rope_parameters": None,
        "rope_theta": parameters.pop("rope_theta"),
        "rope_scaling": parameters,
    }
    older = type(checkpoint)("hf", checkpoint.architecture, config, checkpoint.tensors)
    assert_close(prefill(load_torch(older), TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(family: str, tied: bool) -> None:
    model = hf_model(family, tie_word_embeddings=tied)
    decoder = load_torch(checkpoint_of(model))
    assert decoder.config.tied_head is tied
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize("family", ["mistral", "phi3"])
def test_sliding_window(family: str) -> None:
    model = hf_model(family, sliding_window=5)
    expected = hf_logits(model, TOKENS)
    assert (expected - hf_logits(hf_model(family, sliding_window=None), TOKENS)).abs().max() > 0.01
    decoder = load_torch(checkpoint_of(model))
    assert decoder.config.sliding_window == 5
    assert_close(prefill(decoder, TOKENS), expected)


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (8, 2)])
def test_grouped_query_attention(heads: Sequence[int]) -> None:
    model = hf_model(
        "llama", num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=8
    )
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), hf_logits(model, TOKENS))
