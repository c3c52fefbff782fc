"""GGUF's names and layouts: a Hugging Face model rewritten as GGUF has it gives the same logits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import math
from pathlib import Path
from typing import Any

import torch

from forerun.core.batch import Segment
from forerun.weights.checkpoint import open_checkpoint
from tests.model.gguf_converter import as_gguf
from tests.model.test_families import LLAMA3, TOKENS, assert_close, longrope
from tests.model.tiny import (
    FAMILIES,
    VOCAB,
    YARN,
    MemoryCheckpoint,
    hf_logits,
    hf_model,
    load_torch,
    logits_of,
    prefill,
)

PLAIN = (
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("seed_oss", "seed_oss"),
    ("phi3", "phi3"),
    ("gpt_bigcode", "starcoder"),
)
"""Families whose metadata are sizes alone: Hugging Face's and GGUF's."""


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "architecture"), PLAIN)
def test_gguf_equals_hugging_face(family: str, architecture: str, tied: bool) -> None:
    model = hf_model(family, tie_word_embeddings=tied)
    decoder = load_torch(as_gguf(model, architecture))
    assert decoder.config.tied_head is tied
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


GRANITE = {
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "attention.scale": 0.2,
    "logit_scale": 2.5,
}
GGUF_YARN = {
    "rope.freq_base": 5000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 8,
}
EXPERTS = {"expert_count": 6, "expert_used_count": 2}
BANDS = {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 0.5}
SMALL = {**EXPERTS, "expert_feed_forward_length": 24}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5} | {
    "leading_dense_block_count": 1
}
NEMOTRON = {
    "ssm.conv_kernel": 4,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "ssm.state_size": 16,
    "ssm.inner_size": 64,
    "attention.layer_norm_rms_epsilon": 1e-4,
}
LATENT = {
    **SMALL,
    "expert_count": 8,
    "leading_dense_block_count": 1,
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 24,
    "attention.key_length": 32,
    "attention.value_length": 24,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
}
SHARPER = {**GGUF_YARN, "rope.scaling.yarn_log_multiplier": 0.0707}
WINDOW = {"attention.sliding_window": 5, "attention.sliding_window_pattern": [True, False]}
GEMMA4 = {
    "attention.sliding_window": 5,
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.key_length_swa": 8,
    "attention.value_length_swa": 8,
    "attention.head_count_kv": [2] * 6,
    "attention.shared_kv_layers": 2,
    "feed_forward_length": [48] * 4 + [96] * 2,
    "rope.freq_base": 50.0,
    "rope.freq_base_swa": 100.0,
    "rope.dimension_count": 16,
    "rope.dimension_count_swa": 8,
    "final_logit_softcapping": 3.0,
}
GEMMA3N = {
    **WINDOW,
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.shared_kv_layers": 2,
    "feed_forward_length": [48, 48, 96, 48, 48, 48],
    "rope.freq_base": 5000.0,
    "rope.freq_base_swa": 100.0,
    "final_logit_softcapping": 3.0,
    "embedding_length_per_layer_input": 12,
    "activation_sparsity_scale": [0.8416212, 0.8416212, 0.0, *[-math.inf] * 3],
    "altup.num_inputs": 4,
    "altup.active_idx": 0,
}
HYBRID = {
    "ssm.conv_kernel": 4,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "ssm.state_size": 16,
    "ssm.inner_size": 64,
    "rope.dimension_count": 8,
    "full_attention_interval": 3,
}
SPELLINGS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    # Hugging Face's family, GGUF's, changes of the tiny model, metadata
    ("granite", "granite", {}, GRANITE),
    (
        "gemma2",
        "gemma2",
        {"query_pre_attn_scalar": 16},
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
        | {"attention.sliding_window": 5},
    ),
    (
        "gemma3",
        "gemma3",
        {"query_pre_attn_scalar": 16},
        {**WINDOW, "rope.freq_base": 5000.0, "rope.freq_base_swa": 100.0}
        | {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    ("gemma3n", "gemma3n", {"vocab_size_per_layer_input": VOCAB}, GEMMA3N),
    ("gemma4", "gemma4", {}, GEMMA4 | {"embedding_length_per_layer_input": 12}),
    (
        "gemma4_moe",
        "gemma4",
        {},
        {**GEMMA4, "attention.shared_kv_layers": 0, "attention.head_count_kv": [2, 1] * 3}
        | {"feed_forward_length": 48, "expert_count": 5, "expert_used_count": 2}
        | {"expert_feed_forward_length": 24},
    ),
    ("qwen3_5", "qwen35", {}, HYBRID),
    ("qwen3_5_moe", "qwen35moe", {}, HYBRID | SMALL | {"expert_shared_feed_forward_length": 40}),
    (
        "qwen3_next",
        "qwen3next",
        {"mlp_only_layers": []},
        HYBRID | SMALL | {"expert_shared_feed_forward_length": 40},
    ),
    (
        "granite4_mamba",
        "granitehybrid",
        {"time_step_limit": (0.0, float("inf"))},
        {**GRANITE, **SMALL, "expert_shared_feed_forward_length": 40}
        | {"attention.head_count_kv": [0, 2, 0], "rope.scaling.finetuned": False}
        | {"ssm.conv_kernel": 4, "ssm.time_step_rank": 4, "ssm.group_count": 2}
        | {"ssm.state_size": 16, "ssm.inner_size": 64},
    ),
    (
        "granite4_micro",
        "granitehybrid",
        {},
        {**GRANITE, "attention.head_count_kv": [0, 0, 2], "rope.scaling.finetuned": False}
        | {"ssm.conv_kernel": 4, "ssm.time_step_rank": 4, "ssm.group_count": 1}
        | {"ssm.state_size": 16, "ssm.inner_size": 64},
    ),
    (
        "lfm2",
        "lfm2",
        {"conv_bias": False},
        {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "rope.freq_base": 1e6}
        | {"attention.layer_norm_rms_epsilon": 1e-4, "feed_forward_length": 32},
    ),
    (
        "lfm2_moe",
        "lfm2moe",
        {"conv_bias": False, "routed_scaling_factor": 1.0},
        {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "rope.freq_base": 1e6}
        | {"attention.layer_norm_rms_epsilon": 1e-4, **SMALL, **SIGMOID}
        | {"expert_weights_scale": 1.0},
    ),
    (
        "glm4_moe",
        "glm4moe",
        {},
        {**SMALL, **SIGMOID, "expert_count": 8, "expert_group_count": 4}
        | {"expert_group_used_count": 2, "expert_shared_count": 1, "rope.dimension_count": 8},
    ),
    (
        "ernie4_5_moe",
        "ernie4_5-moe",
        {"moe_layer_interval": 1},
        {**SMALL, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1}
        | {"expert_shared_count": 2, "expert_shared_feed_forward_length": 48}
        | {"rope.freq_base": 500_000.0},
    ),
    (
        "nemotron_h",
        "nemotron_h",
        {"time_step_min": 1e-6},
        {**NEMOTRON, "attention.head_count_kv": [0, 0, 0, 2, 0]}
        | {"feed_forward_length": [0, 48, 0, 0, 48]},
    ),
    (
        "nemotron_h_moe",
        "nemotron_h_moe",
        {"time_step_min": 1e-6},
        {**NEMOTRON, **SMALL, **SIGMOID, "attention.head_count_kv": [0, 0, 0, 0, 2, 0]}
        | {"feed_forward_length": [0, 24, 0, 0, 0, 24], "expert_shared_count": 1}
        | {"expert_shared_feed_forward_length": 40},
    ),
    (
        "deepseek_v2",
        "deepseek2",
        {"topk_method": "greedy"},
        {**LATENT, **SHARPER, "expert_shared_count": 2, "expert_weights_scale": 1.5},
    ),
    (
        "deepseek_v3",
        "deepseek2",
        {},
        {**LATENT, **SHARPER, **SIGMOID, "expert_shared_count": 1, "expert_weights_scale": 2.5}
        | {"attention.q_lora_rank": 20, "expert_group_count": 4, "expert_group_used_count": 2},
    ),
    (
        "glm4_moe_lite",
        "deepseek2",
        {},
        {**LATENT, **SIGMOID, "expert_shared_count": 1, "expert_weights_scale": 1.8}
        | {"attention.q_lora_rank": 20, "rope.freq_base": 5000.0},
    ),
    ("mistral", "llama", {"sliding_window": None}, {}),
    ("ernie4_5", "ernie4_5", {"use_bias": False}, {"rope.freq_base": 5e5}),
    ("hunyuan", "hunyuan-dense", {}, {}),
    ("arcee", "arcee", {}, {}),
    ("internlm3", "llama", {}, {"rope.freq_base": 5000.0}),
    (
        "cohere",
        "command-r",
        {"attention_bias": False},
        {"logit_scale": 0.5, "rope.freq_base": 5e5},
    ),
    ("cohere2", "cohere2", {}, {**WINDOW, "logit_scale": 0.5}),
    ("starcoder2", "starcoder2", {"sliding_window": None}, {}),
    ("exaone4", "exaone4", {}, WINDOW),
    ("exaone4_small", "exaone4", {}, {}),
    ("glm", "chatglm", {}, {"rope.dimension_count": 8}),
    ("glm4", "glm4", {}, {"rope.dimension_count": 4}),
    (
        "ministral3",
        "mistral3",
        {},
        {**GGUF_YARN, "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.5},
    ),
    ("smollm3", "smollm3", {}, {"rope.freq_base": 5000.0}),
    ("olmo2", "olmo2", {"rope_parameters": {"rope_theta": 10_000.0}}, {}),
    (
        "olmo3",
        "olmo2",
        {
            "rope_parameters": {
                **FAMILIES["olmo3"][2]["rope_parameters"],
                "sliding_attention": {"rope_theta": 5000.0},
            }
        },
        {**WINDOW, **GGUF_YARN},
    ),
    ("qwen3_moe", "qwen3moe", {"mlp_only_layers": []}, SMALL),
    ("qwen3_vl", "qwen3vl", {}, {"rope.freq_base": 5e5}),
    ("qwen3_vl_moe", "qwen3vlmoe", {"mlp_only_layers": []}, {**SMALL, "rope.freq_base": 5e5}),
    ("olmoe", "olmoe", {}, {"expert_count": 6, "expert_used_count": 3}),
    ("mixtral", "llama", {"sliding_window": None}, {**EXPERTS, "rope.freq_base": 1e6}),
    (
        "gpt_oss",
        "gpt-oss",
        {},
        {**WINDOW, **GGUF_YARN, **EXPERTS, **BANDS} | {"rope.scaling.original_context_length": 64},
    ),
    ("granite4", "granite", {}, {**GRANITE, "feed_forward_length": 40}),
    ("granitemoe", "granitemoe", {}, {**GRANITE, **SMALL}),
    (
        "granitemoeshared",
        "granitemoe",
        {},
        {**GRANITE, **SMALL, "expert_shared_feed_forward_length": 40},
    ),
    (
        "granitemoehybrid",
        "granitemoe",
        {},
        {**GRANITE, **SMALL, "expert_shared_feed_forward_length": 40}
        | {"rope.scaling.finetuned": False},
    ),
)


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
