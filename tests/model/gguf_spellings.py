"""How GGUF files spell what sets families apart: the metadata for a Hugging Face configuration."""

from __future__ import annotations

import math
from typing import Any

from tests.model.tiny import FAMILIES, VOCAB

PLAIN = (
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("seed_oss", "seed_oss"),
    ("phi3", "phi3"),
    ("gpt_bigcode", "starcoder"),
)
"""Families whose metadata are sizes alone: Hugging Face's and GGUF's."""


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
