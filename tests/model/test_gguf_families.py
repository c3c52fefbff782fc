"""GGUF's names and layouts: a Hugging Face model rewritten as GGUF has it gives the same logits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pathlib import Path
from typing import Any

import torch

from forerun.core.batch import Segment
from forerun.weights.checkpoint import open_checkpoint
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_spellings import BANDS, EXPERTS, GGUF_YARN, PLAIN, SPELLINGS
from tests.model.test_families import LLAMA3, TOKENS, assert_close, longrope
from tests.model.tiny import (
    YARN,
    MemoryCheckpoint,
    hf_logits,
    hf_model,
    load_torch,
    logits_of,
    prefill,
)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "architecture"), PLAIN)
def test_gguf_equals_hugging_face(family: str, architecture: str, tied: bool) -> None:
    model = hf_model(family, tie_word_embeddings=tied)
    decoder = load_torch(as_gguf(model, architecture))
    assert decoder.config.tied_head is tied
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize(
    ("family", "architecture", "changes", "metadata"),
    SPELLINGS,
    ids=[f"{family}-{name}" for family, name, _, _ in SPELLINGS],
)
def test_gguf_spellings_of_what_sets_families_apart(
    family: str, architecture: str, changes: dict[str, Any], metadata: dict[str, Any]
) -> None:
    model = hf_model(family, **changes)
    gguf = as_gguf(model, architecture, metadata)
    if architecture == "gemma4":
        gguf.tensors["rope_freqs.weight"] = torch.tensor([1.0] * 4 + [1e30] * 4)  # type: ignore[index]
    assert_close(prefill(load_torch(gguf), TOKENS), hf_logits(model, TOKENS))


def test_gate_and_up_of_experts_may_be_one_tensor() -> None:
    family, architecture, _, metadata = next(each for each in SPELLINGS if each[0] == "gemma4_moe")
    model = hf_model(family)
    gguf = as_gguf(model, architecture, metadata)
    tensors = {"rope_freqs.weight": torch.tensor([1.0] * 4 + [1e30] * 4)}
    for name, weight in gguf.tensors.items():
        if "ffn_gate_exps" in name:
            up = gguf.tensors[name.replace("gate", "up")]
            tensors[name.replace("gate", "gate_up")] = torch.cat((weight, up), dim=1)
        elif "ffn_up_exps" not in name:
            tensors[name] = weight
    fused = MemoryCheckpoint("gguf", architecture, gguf.config, tensors)
    assert_close(prefill(load_torch(fused), TOKENS), hf_logits(model, TOKENS))


def test_a_period_and_a_list_spell_the_same_windows() -> None:
    model = hf_model("gpt_oss", num_hidden_layers=4, layer_types=None)
    metadata = {**GGUF_YARN, **EXPERTS, **BANDS, "rope.scaling.original_context_length": 64}
    metadata["attention.sliding_window"] = 5
    expected = hf_logits(model, TOKENS)
    for pattern in (None, 2, [True, False, True, False]):
        gguf = as_gguf(model, "gpt-oss", metadata | {"attention.sliding_window_pattern": pattern})
        assert_close(prefill(load_torch(gguf), TOKENS), expected)


def test_older_files_have_a_tensor_an_expert() -> None:
    model = hf_model("mixtral", sliding_window=None)
    gguf = as_gguf(model, "llama", {**EXPERTS, "rope.freq_base": 1e6})
    tensors = {}
    for name, weight in gguf.tensors.items():
        parts = (
            {f".{e}.weight": tensor for e, tensor in enumerate(weight)} if "_exps" in name else {}
        )
        tensors |= {name.replace("_exps.weight", end): tensor for end, tensor in parts.items()}
        if not parts:
            tensors[name] = weight
    older = MemoryCheckpoint("gguf", "llama", gguf.config, tensors)
    assert "blk.1.ffn_down.5.weight" in tensors
    assert_close(prefill(load_torch(older), TOKENS), hf_logits(model, TOKENS))


def test_older_files_have_latents_keys_and_values_in_one_matrix() -> None:
    family, architecture, _, metadata = next(each for each in SPELLINGS if each[0] == "deepseek_v3")
    model = hf_model(family)
    gguf = as_gguf(model, architecture, metadata)
    tensors = {name: weight for name, weight in gguf.tensors.items() if "attn_v_b" not in name}
    for name in [name for name in tensors if "attn_k_b" in name]:
        values = gguf.tensors[name.replace("attn_k_b", "attn_v_b")]
        both = torch.cat((tensors.pop(name).mT, values), 1)
        tensors[name.replace("attn_k_b", "attn_kv_b")] = both.flatten(0, 1)
    sizes = {"attention.head_count_kv": 4, "attention.key_length": 20}
    sizes |= {"attention.value_length": 16}
    config = {key: value for key, value in gguf.config.items() if not key.endswith("_mla")}
    config |= {f"{architecture}.{key}": value for key, value in sizes.items()}
    older = MemoryCheckpoint("gguf", architecture, config, tensors)
    assert_close(prefill(load_torch(older), TOKENS), hf_logits(model, TOKENS))


def test_older_glm_files_have_one_matrix_of_q_k_and_v() -> None:
    model = hf_model("glm")
    gguf = as_gguf(model, "chatglm", {"rope.dimension_count": 8})
    tensors = {name: t for name, t in gguf.tensors.items() if ".attn_q." not in name}
    for name, query in gguf.tensors.items():
        if ".attn_q." in name:
            others = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "kv"]
            tensors[name.replace("attn_q", "attn_qkv")] = torch.cat((query, *others))
    assert "blk.1.attn_qkv.bias" in tensors
    older = MemoryCheckpoint("gguf", "chatglm", gguf.config, tensors)
    assert_close(prefill(load_torch(older), TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize(
    ("scaling", "metadata"),
    [
        (
            {"rope_type": "linear", "factor": 3.0},
            {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
        ),
        ({"rope_type": "linear", "factor": 3.0}, {"rope.scale_linear": 3.0}),
        (
            YARN,
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": YARN["factor"],
                "rope.scaling.original_context_length": YARN["original_max_position_embeddings"],
            },
        ),
    ],
    ids=["linear", "old-linear", "yarn"],
)
def test_rope_scaling_metadata(scaling: dict[str, Any], metadata: dict[str, Any]) -> None:
    model = hf_model("qwen2", rope_parameters={"rope_theta": 5000.0, **scaling})
    gguf = as_gguf(model, "qwen2", {"rope.freq_base": 5000.0, **metadata})
    assert_close(prefill(load_torch(gguf), TOKENS), hf_logits(model, TOKENS))


def test_rope_freqs_tensor_holds_the_divisors() -> None:
    model = hf_model("llama", head_dim=16, rope_parameters={"rope_theta": 5000.0, **LLAMA3})
    gguf = as_gguf(model, "llama", {"rope.freq_base": 5000.0})
    plain = 1 / 5000.0 ** (torch.arange(0, 16, 2) / 16)
    gguf.tensors["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq  # type: ignore[index]
    assert_close(prefill(load_torch(gguf), TOKENS), hf_logits(model, TOKENS))


def test_longrope_factor_tensors() -> None:
    parameters = longrope(4, 16)
    model = hf_model("phi3", rope_parameters=parameters, original_max_position_embeddings=16)
    metadata = {"rope.freq_base": 5000.0, "rope.scaling.original_context_length": 16}
    gguf = as_gguf(model, "phi3", metadata)
    for length in ("long", "short"):
        factors = torch.tensor(parameters[f"{length}_factor"])
        gguf.tensors[f"rope_factors_{length}.weight"] = factors  # type: ignore[index]
    assert_close(prefill(load_torch(gguf), TOKENS), hf_logits(model, TOKENS))


@pytest.mark.slow
def test_the_default_model_speaks(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    decoder, tokenizer = load_torch(checkpoint), checkpoint.tokenizer()
    tokens = tokenizer.encode("The capital of France is")
    cache = decoder.new_cache(1, 64)
    for _ in range(4):
        pending = tuple(tokens[cache.length(0) :])
        logits = logits_of(decoder, cache, Segment(0, cache.length(0), pending))
        cache.keep(0, range(len(pending)))
        tokens.append(int(logits[-1].argmax()))
    assert "Paris" in tokenizer.decode(tokens)
