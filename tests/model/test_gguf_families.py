"""GGUF's names and layouts: a Hugging Face model rewritten as GGUF has it gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from forerun.core.batch import Segment
from forerun.weights.checkpoint import open_checkpoint
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

RENAMED = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.h", "blk"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
)


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of every head reordered 0, E/2, 1, E/2 + 1, ...: what llama.cpp's converter does to q and k."""
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return torch.stack((heads[:, 0], heads[:, 1]), dim=2).flatten(0, 2)


def as_gguf(
    model: transformers.PreTrainedModel, architecture: str, extra: dict[str, Any] | None = None
) -> MemoryCheckpoint:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tensors = {}
    for name, weight in model.state_dict().items():
        if config.tie_word_embeddings and name.startswith("lm_head"):
            continue
        if architecture in ("llama", "granite") and ("q_proj" in name or "k_proj" in name):
            weight = interleaved(weight, head_dim)
        for old, new in RENAMED:
            name = name.replace(old, new)
        tensors[name] = weight
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_epsilon", None),
    }
    metadata |= extra or {}
    prefixed = {f"{architecture}.{k}": v for k, v in metadata.items() if v is not None}
    return MemoryCheckpoint("gguf", architecture, prefixed, tensors)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("phi3", "phi3"),
        ("gpt_bigcode", "starcoder"),
    ],
)
def test_gguf_equals_hugging_face(family: str, architecture: str, tied: bool) -> None:
    model = hf_model(family, tie_word_embeddings=tied)
    decoder = load_torch(as_gguf(model, architecture))
    assert decoder.config.tied_head is tied
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


def test_granite_multipliers() -> None:
    model = hf_model("granite")
    extra = {
        "embedding_scale": model.config.embedding_multiplier,
        "residual_scale": model.config.residual_multiplier,
        "attention.scale": model.config.attention_multiplier,
        "logit_scale": model.config.logits_scaling,
    }
    decoder = load_torch(as_gguf(model, "granite", extra))
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


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
