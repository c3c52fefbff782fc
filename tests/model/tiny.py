"""Tiny models for tests: random Hugging Face models of every family, and checkpoints that live in memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
import transformers
from torch import Tensor

from forerun.core.batch import Batch, Segment
from forerun.lab.torch import backend
from forerun.lab.torch.decoder import Decoder
from forerun.model.cache.base import KVCache
from forerun.model.model import Model
from forerun.weights.checkpoint import Checkpoint
from forerun.weights.codes import FORMATS
from forerun.weights.multimodal import language_model_of
from forerun.weights.stored import StoredTensor

VOCAB = 61


@dataclass(frozen=True)
class MemoryCheckpoint:
    """What the loader asks of a checkpoint, over a dictionary."""

    kind: Literal["gguf", "hf"]
    architecture: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def tensor(self, name: str) -> StoredTensor:
        values = self.tensors[name].float().contiguous()
        num_rows = len(values) if values.ndim > 1 else 1
        data = values.reshape(num_rows, -1).numpy().view(np.uint8)
        return StoredTensor(name, tuple(values.shape), FORMATS["f32"], data)


_SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GATED = {**_SHARED, "intermediate_size": 48, "num_key_value_heads": 2}

_WINDOWED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_theta": 5000.0, **YARN},
}
_LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0}
_GROWING = {"rope_theta": 5000.0, **YARN, "llama_4_scaling_beta": 0.5} | {
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_UNROUNDED = {"rope_theta": 5000.0, **YARN, "original_max_position_embeddings": 64} | {
    "beta_fast": 8.0,
    "beta_slow": 0.5,
    "truncate": False,
}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.5,
}
_GRANITE_MOE = {**_GATED, **_GRANITE, "intermediate_size": 24}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}

_HYBRID = {
    **_GATED,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
_NEMOTRON = {
    **{name: value for name, value in _GATED.items() if name != "num_hidden_layers"},
    **{"head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "layer_norm_epsilon": 1e-4},
    **{"mamba_num_heads": 4, "mamba_head_dim": 16, "time_step_min": 0.05},
}
_SHARPER = {"rope_theta": 5000.0, **YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
_LATENT = {
    **_GATED,
    **_ROUTED,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "n_routed_experts": 8,
}

_GEMMA4 = {
    **_GATED,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 5,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB,
    "final_logit_softcapping": 3.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 50.0,
        },
    },
}

_GEMMA3N = {
    **_GATED,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 5,
    "head_dim": 16,
    "intermediate_size": [48, 48, 96, 48, 48, 48],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB - 5,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.8, 0.8, 0.5, 0.0, 0.0, 0.0],
    "final_logit_softcapping": 3.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}

FAMILIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_GATED, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_GATED, "head_dim": 16}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GATED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_GATED, "head_dim": 16}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _GATED),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {**_GATED, **_GRANITE}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**_GATED, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 5}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_GATED, **_WINDOWED, "head_dim": 16, "query_pre_attn_scalar": 24}
        | {"rope_parameters": _ROPES | {"full_attention": _LINEAR}},
    ),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM", _GEMMA4),
    "gemma4_moe": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {**_GEMMA4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True}
        | {"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}
        | {"use_double_wide_mlp": False},
    ),
    "gemma3n": ("Gemma3nTextConfig", "Gemma3nForCausalLM", _GEMMA3N),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM", {**_GATED, **_WINDOWED}),
    "exaone4_small": (
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {**_GATED, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "glm": ("GlmConfig", "GlmForCausalLM", {**_GATED, "head_dim": 16}),
    "glm4": (
        "Glm4Config",
        "Glm4ForCausalLM",
        {**_GATED, "head_dim": 16, "partial_rotary_factor": 0.25},
    ),
    "qwen3_vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", {**_GATED, "head_dim": 16}),
    "qwen3_vl_moe": (
        "Qwen3VLMoeConfig",
        "Qwen3VLMoeForConditionalGeneration",
        {**_GATED, "num_hidden_layers": 3, "head_dim": 16, "mlp_only_layers": [1]}
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM", {**_GATED, "head_dim": 16}),
    "ernie4_5": (
        "Ernie4_5Config",
        "Ernie4_5ForCausalLM",
        {**_GATED, "head_dim": 16, "use_bias": True},
    ),
    "hunyuan": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", {**_GATED, "head_dim": 16}),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", _GATED),
    "internlm3": (
        "InternLM3Config",
        "LlamaForCausalLM",
        {**_GATED, "head_dim": 16, "attention_bias": True, "mlp_bias": True}
        | {"rope_parameters": {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 5000.0}},
    ),
    "cohere": (
        "CohereConfig",
        "CohereForCausalLM",
        {**_GATED, "use_qk_norm": True, "logit_scale": 0.5, "attention_bias": True},
    ),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {**_GATED, **_WINDOWED, "logit_scale": 0.5}),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {**_GATED, "sliding_window": 5}),
    "ministral": (
        "MinistralConfig",
        "MinistralForCausalLM",
        {**_GATED, **_WINDOWED, "head_dim": 16},
    ),
    "ministral3": (
        "Ministral3Config",
        "Ministral3ForCausalLM",
        {**_GATED, "head_dim": 16, "rope_parameters": _GROWING},
    ),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {**_GATED, "num_hidden_layers": 4, "rope_parameters": {"rope_theta": 5000.0}},
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _GATED),
    "olmo3": (
        "Olmo3Config",
        "Olmo3ForCausalLM",
        {**_GATED, **_WINDOWED, "rope_parameters": _ROPES},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**_GATED, "num_hidden_layers": 3, "head_dim": 16, "mlp_only_layers": [1]}
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"norm_topk_prob": True},
    ),
    "olmoe": (
        "OlmoeConfig",
        "OlmoeForCausalLM",
        {**_GATED, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_GATED, **_EXPERTS, "sliding_window": 5}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {**_GATED, **_WINDOWED, **_EXPERTS, "head_dim": 16} | {"rope_parameters": _UNROUNDED},
    ),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", {**_GRANITE_MOE, **_EXPERTS}),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        "GraniteMoeSharedForCausalLM",
        {**_GRANITE_MOE, **_EXPERTS, "shared_intermediate_size": 40},
    ),
    "granite4": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {**_GATED, **_GRANITE, "num_local_experts": 0, "shared_intermediate_size": 40}
        | {"layer_types": ["full_attention"] * 2, "mamba_n_heads": 4}
        | {"position_embedding_type": "rope"},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_MOE, **_EXPERTS, "shared_intermediate_size": 40}
        | {"layer_types": ["full_attention"] * 2, "mamba_n_heads": 4},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**_HYBRID, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _HYBRID),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**_HYBRID, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"shared_expert_intermediate_size": 40},
    ),
    "granite4_mamba": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_MOE, **_EXPERTS, "shared_intermediate_size": 40}
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"num_hidden_layers": 3, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16}
        | {"mamba_d_head": 16, "time_step_limit": (0.05, 0.7)},
    ),
    "granite4_micro": (  # the published config of granite-4.0-h-micro, at other sizes
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {**_GATED, **_GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0}
        | {"layer_types": ["mamba", "mamba", "attention"], "num_hidden_layers": 3}
        | {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
        | {"mamba_expand": 2, "mamba_conv_bias": True, "position_embedding_type": "nope"}
        | {"shared_intermediate_size": 48, "tie_word_embeddings": True},
    ),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {**_GATED, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
        | {"conv_bias": True, "block_multiple_of": 16, "norm_eps": 1e-4},
    ),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {**_GATED, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
        | {"num_dense_layers": 1, "norm_eps": 1e-4, "routed_scaling_factor": 1.5, **_ROUTED}
        | {"num_experts": 6},
    ),
    "glm4_moe": (
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        {**_GATED, **_ROUTED, "num_hidden_layers": 3, "head_dim": 16, "use_qk_norm": True}
        | {"attention_bias": True, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 1.5},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        {**_GATED, "num_hidden_layers": 4, "moe_num_experts": 6, "moe_k": 2}
        | {"moe_intermediate_size": 24, "moe_num_shared_experts": 2, "moe_layer_interval": 2},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {**_NEMOTRON, "hybrid_override_pattern": "M-M*-"},
    ),
    "nemotron_h_moe": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {**_NEMOTRON, "hybrid_override_pattern": "MEMM*E", "routed_scaling_factor": 1.5}
        | {"n_routed_experts": 6, "moe_shared_expert_intermediate_size": 40, **_ROUTED},
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {**_LATENT, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 2}
        | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 1.5, "rope_parameters": _SHARPER},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {**_LATENT, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 2.5, "rope_parameters": _SHARPER},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        "Glm4MoeLiteForCausalLM",
        {**_LATENT, "rope_parameters": {"rope_theta": 5000.0}, "rms_norm_eps": 1e-6},
    ),
    "opt": ("OPTConfig", "OPTForCausalLM", {**_SHARED, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gpt_bigcode": (
        "GPTBigCodeConfig",
        "GPTBigCodeForCausalLM",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
        | {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    ),
}


SEEING = ("qwen3_vl", "qwen3_vl_moe")
"""Families whose models have eyes, too."""
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2} | {
    "out_hidden_size": 32,
    "patch_size": 8,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


def hf_model(family: str, **changes: Any) -> transformers.PreTrainedModel:
    """A random Hugging Face model of a family in fp32; norms and biases are random, too."""
    config_class, model_class, settings = FAMILIES[family]
    settings = {**settings, **changes}
    if family in SEEING:
        tied = {"tie_word_embeddings": settings.pop("tie_word_embeddings", False)}
        settings = {"text_config": settings, "vision_config": VISION, **tied}
    config = getattr(transformers, config_class)(**settings, attn_implementation="eager")
    torch.manual_seed(len(family))
    model = getattr(transformers, model_class)(config).eval().float()
    randomize(model)
    model.tie_weights()
    return model


def randomize(model: transformers.PreTrainedModel) -> None:
    """Give every weight random numbers, norms and biases too."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if weight.ndim == 1 else 0.0))
            else:
                weight.copy_(torch.randn_like(weight) * _spread(name, model))
        for name, buffer in model.named_buffers():
            if name.endswith("_bias"):  # of routers
                buffer.copy_(torch.randn_like(buffer) * 0.3)
            if name.endswith("layer_scalar"):
                buffer.copy_(0.7 + torch.rand_like(buffer))


def _spread(name: str, model: transformers.PreTrainedModel) -> float:
    """The deviation of a weight's numbers: wide where something must bite."""
    if name.endswith(("sinks", "router.scale", "per_expert_scale")):
        return 1.0
    is_clamped = name.endswith("gate_up_proj") and model.config.model_type == "gpt_oss"
    return 0.75 if is_clamped else 0.25


def checkpoint_of(model: transformers.PreTrainedModel) -> MemoryCheckpoint:
    """A Hugging Face model as the checkpoint its folder would be."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return checkpoint_from(type(model).__name__, model.config.to_dict(), tensors)


def checkpoint_from(
    architecture: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> MemoryCheckpoint:
    """The folder of such a config.json and such tensors, once it is opened."""
    return MemoryCheckpoint("hf", architecture, *language_model_of(architecture, config, tensors))


def load_torch(checkpoint: Checkpoint | MemoryCheckpoint, **options: Any) -> Decoder:
    """The checkpoint's model in torch."""
    return backend.load_model(cast(Checkpoint, checkpoint), **options)


def hf_logits(model: transformers.PreTrainedModel, tokens: Iterable[int]) -> Tensor:
    """Logits (T, V) of a Hugging Face model."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def logits_of(model: Model, cache: KVCache, *segments: Segment) -> Tensor:
    """Logits (R, V) of one pass, to be compared with Hugging Face's."""
    return torch.from_numpy(model.head(model.forward(Batch(segments), cache).last))


def prefill(model: Model, tokens: Iterable[int], max_len: int = 256) -> Tensor:
    """Logits (T, V) of a whole text in one pass over a fresh cache, to be compared with Hugging Face's."""
    return logits_of(model, model.new_cache(1, max_len), Segment(0, 0, tuple(tokens)))
