"""What cannot be loaded is refused in one clear line; what can is loaded from real folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.core.errors import LoadError
from forerun.formats.checkpoint import open_checkpoint
from forerun.nn.loader import read_config
from tests.nn.test_families import TOKENS, assert_close
from tests.nn.tiny import (
    FAMILIES,
    MemoryCheckpoint,
    checkpoint_of,
    hf_logits,
    hf_model,
    load_torch,
    prefill,
)


def changed(checkpoint: MemoryCheckpoint, **config: Any) -> MemoryCheckpoint:
    return replace(checkpoint, config={**checkpoint.config, **config})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    model = hf_model(family)
    model.save_pretrained(tmp_path)
    decoder = load_torch(open_checkpoint(tmp_path))
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


def test_unknown_architecture_lists_the_known() -> None:
    checkpoint = replace(checkpoint_of(hf_model("llama")), architecture="LlamaForCasualLM")
    with pytest.raises(LoadError, match=r"did you mean 'LlamaForCausalLM'.*OPTForCausalLM"):
        load_torch(checkpoint)
    with pytest.raises(LoadError, match=r"unknown architecture 'mamba'.*starcoder"):
        load_torch(MemoryCheckpoint("gguf", "mamba", {}, {}))


def test_missing_tensor_is_named() -> None:
    checkpoint = checkpoint_of(hf_model("qwen2"))
    del checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]  # type: ignore[attr-defined]
    with pytest.raises(LoadError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_torch(checkpoint)


def test_misshapen_tensor_is_named_with_both_shapes() -> None:
    checkpoint = checkpoint_of(hf_model("phi3"))
    name = "model.layers.0.self_attn.qkv_proj.weight"
    checkpoint.tensors[name] = torch.zeros(60, 32)  # type: ignore[index]
    with pytest.raises(LoadError, match=r"qkv_proj.weight' .*\(16, 32\), but is \(12, 32\)"):
        load_torch(checkpoint)


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16 is not supported"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before=False is not supported"),
        ("opt", {"layer_norm_elementwise_affine": False}, "elementwise_affine=False"),
        ("gpt_bigcode", {"multi_query": False}, "multi_query=False is not supported"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantized with 'awq'"),
        ("llama", {"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ("llama", {"rms_norm_eps": None}, "lacks 'rms_norm_eps'"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ("llama", {"head_dim": 6}, "head dimension must be a multiple of 4"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope scaling 'dynamic' is not supported: linear, llama3, longrope, yarn are",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
            "'llama3' lacks its parameter 'low_freq_factor'",
        ),
        (
            "qwen2",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
            | {"layer_types": ["full_attention", "sliding_attention"]},
            "sliding window in some layers only",
        ),
    ],
)
def test_what_is_not_supported_says_so(family: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read_config(changed(checkpoint_of(hf_model(family)), **config))


def test_mixture_of_experts_is_refused() -> None:
    config = {"llama.expert_count": 8}
    with pytest.raises(LoadError, match="expert_count=8 is not supported"):
        read_config(MemoryCheckpoint("gguf", "llama", config, {}))


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    load_torch(
        checkpoint_of(hf_model("qwen2")), progress=lambda done, all_: seen.append((done, all_))
    )
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)
