"""What a GGUF of each tiny family says besides what `as_gguf` writes, and how it becomes a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gguf

from tests.model.tiny import MemoryCheckpoint

GEMMA4 = {
    **{f"attention.{part}_length": 32 for part in ("key", "value")},
    **{f"attention.{part}_length_swa": 16 for part in ("key", "value")},
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "embedding_length_per_layer_input": 0,
}
SHARED = {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64}
ROUTED = {"expert_feed_forward_length": 32}
LATENT = {
    **ROUTED,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 16,
}
SECTIONS = {"rope.dimension_sections": [2, 1, 1, 0]}
METADATA: Mapping[str, Mapping[str, Any]] = {
    "gemma4": {**GEMMA4, "embedding_length_per_layer_input": 32},
    # llama.cpp has 20 layers with keys of their own, of which the first 10 are sparse, and caps logits at 30. Its
    # deviation is that of a sample: sqrt(256 / 255) of what transformers computes.
    "gemma3n": {
        "embedding_length_per_layer_input": 256,
        "attention.sliding_window_pattern": ([True] * 4 + [False]) * 5,
        "attention.shared_kv_layers": 5,
        "feed_forward_length": 256,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_scale": [1.6448536 * math.sqrt(256 / 255)] * 10 + [-math.inf] * 15,
    },
    "gemma4_moe": {**GEMMA4, "expert_feed_forward_length": 32},
    "cohere2": {"attention.sliding_window_pattern": [True, True, True, False]},
    "exaone4": {"attention.sliding_window_pattern": [True, True, True, False] * 16},
    # llama.cpp rounds the bounds of yarn's band, as the model's authors do not: here they are beyond all features.
    "gpt_oss": {
        "expert_feed_forward_length": 48,
        "rope.scaling.original_context_length": 8,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
    },
    "qwen3_moe": {"expert_feed_forward_length": 32},
    "qwen3_vl": {"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 0},
    "qwen3_vl_moe": {"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 0}
    | {"expert_feed_forward_length": 32},
    "qwen3_5": SECTIONS,
    "qwen3_5_moe": SHARED | SECTIONS,
    "qwen3_next": SHARED,
    "granite4_micro": {"ssm.inner_size": 128},
    "granite4_mamba": {**SHARED, "ssm.inner_size": 128},
    "lfm2_moe": ROUTED,
    "glm4_moe": ROUTED,
    "ernie4_5_moe": {**ROUTED, "expert_shared_feed_forward_length": 64},
    "nemotron_h_moe": {**ROUTED, "expert_shared_feed_forward_length": 48}
    | {"feed_forward_length": [0, 32, 0, 0, 0, 32]},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "attention.q_lora_rank": 32},
    "glm4_moe_lite": {**LATENT, "attention.q_lora_rank": 32},
    "granite4": {"feed_forward_length": 48},
    "granitemoe": {"expert_feed_forward_length": 32},
    "granitemoeshared": {"expert_feed_forward_length": 32}
    | {"expert_shared_feed_forward_length": 48},
}


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Add a vocabulary that llama.cpp accepts."""
    special = ["<unk>", "<s>", "</s>"]
    words = [f"▁w{i}" for i in range(size - len(special))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *words])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3, *[1] * len(words)])


def add(writer: gguf.GGUFWriter, checkpoint: MemoryCheckpoint) -> None:
    """Add a checkpoint's numbers and tensors."""
    for key, value in checkpoint.config.items():
        kind = gguf.GGUFValueType.get_type(value)
        kind = gguf.GGUFValueType.UINT32 if kind == gguf.GGUFValueType.INT32 else kind
        sub = None
        if isinstance(value, list):
            sub = gguf.GGUFValueType.get_type(value[0])
        writer.add_key_value(key, value, kind, sub_type=sub)
    for name, tensor in checkpoint.tensors.items():
        writer.add_tensor(name, tensor.detach().float().contiguous().numpy())
