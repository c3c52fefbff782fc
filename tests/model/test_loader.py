"""What cannot be loaded is refused in one clear line; what can is loaded from real folders."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from forerun.core.errors import ConfigError, LoadError
from forerun.model import loader
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.loader import (
    choose_backend,
    load_model,
    read_config,
    stored_weights,
    weights_nbytes,
)
from forerun.model.random_model import random_config
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.rtn import quantize_weight
from forerun.weights.stored import StoredTensor
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_spellings import SPELLINGS
from tests.model.test_families import TOKENS, assert_close
from tests.model.tiny import (
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


@pytest.mark.parametrize("family", ["llama", "gpt_bigcode", "opt", "gemma3"])
def test_a_folder_without_a_head_or_architectures_gives_the_same_logits(
    family: str, tmp_path: Path
) -> None:
    """As transformers saves a base model: names without their prefix; beside it an index that was left behind."""
    model = hf_model(family, tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("architectures")
    (tmp_path / "config.json").write_text(json.dumps(config))
    stale = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(stale))
    loaded = load_torch(open_checkpoint(tmp_path))
    assert_close(prefill(loaded, TOKENS), hf_logits(model, TOKENS))


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
    with pytest.raises(
        LoadError, match=r"qkv_proj.weight' should be \(64, 32\), but is \(60, 32\) \('num_att"
    ):
        load_torch(checkpoint)


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16 is not supported"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before=False is not supported"),
        ("opt", {"layer_norm_elementwise_affine": False}, "elementwise_affine=False"),
        ("gpt_bigcode", {"multi_query": False}, "multi_query=False is not supported"),
        ("llama", {"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ("llama", {"rms_norm_eps": None}, "lacks 'rms_norm_eps'"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ("llama", {"head_dim": 6}, "head dimension must be a multiple of 4"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
            "rope scaling 'ntk' is not supported: dynamic, linear, llama3, longrope, proportional, yarn are",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
            "rope scaling 'llama3': 'low_freq_factor' is missing",
        ),
        (
            "qwen2",
            {"layer_types": ["full_attention", "linear_attention"]},
            "layers of type 'linear_attention' are not supported: full_attention and sliding_att",
        ),
        ("qwen2", {"layer_types": ["full_attention"]}, r"must be a list of 2 texts"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0 is not supported: only None is"),
        (
            "olmoe",
            {"num_experts_per_tok": 7},
            "choose 7 of 6 experts .'num_experts_per_tok' is 7, 'num_experts' is 6",
        ),
        (
            "mixtral",
            {"num_local_experts": 7},
            r"should be \(7, 32\), but is \(6, 32\) \('num_local_experts' is 7",
        ),
        ("mixtral", {"num_local_experts": 1 << 17}, "must be a whole number from 0 to 65536"),
        (
            "gpt_oss",
            {"intermediate_size": 44},
            r"should be \(6, 32, 88\), but is .*'intermediate_si",
        ),
        ("gpt_oss", {"intermediate_size": 46}, "a multiple of 4"),
        (
            "granite4_mamba",
            {"layer_types": ["linear_attention", "chunked_attention", "full_attention"]},
            "layers of type 'chunked_attention' are not supported: linear_attention, conv, mamba",
        ),
        ("granite4_mamba", {"mamba_n_groups": 3}, "4 heads of values cannot share 3 of keys"),
        ("granite4_mamba", {"mamba_n_heads": 24}, "24 heads cannot divide 64 values evenly"),
        ("granite4_mamba", {"time_step_limit": [0.1, "x"]}, "'time_step_limit' is 'x', but must"),
        ("granite4_mamba", {"mamba_d_conv": 1}, "must be a whole number from 2 to 64"),
        ("qwen3_5", {"linear_key_head_dim": 6}, "but must be a multiple of 4"),
        (
            "qwen3_5",
            {"linear_num_value_heads": 6},
            r"in_proj_qkv.weight' should be \(160, 32\), but is \(128, 32\) .*value_heads' is 6",
        ),
        ("qwen3_5", {"layer_types": ["full_attention"] * 3}, "must be a list of 4 texts"),
        (
            "qwen3_5",
            {"layer_types": ["full_attention"] * 4},
            "no tensor 'model.layers.0.self_attn.q_proj.weight'",
        ),
        ("lfm2", {"conv_L_cache": 5}, r"conv.conv.weight' should be \(160,\), but is \(32, 1, 3\)"),
        ("gemma3", {"use_bidirectional_attention": True}, "attention=True is not supported"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "'mlp_only_layers' is 3, but must be a list"),
        ("smollm3", {"no_rope_layers": [1, 2]}, "must be a list of 4 ones and zeros"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {"rope_type": "ntk", "factor": 2.0}}},
            "rope scaling 'ntk' is not supported",
        ),
    ],
)
def test_what_is_not_supported_says_so(family: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read_config(changed(checkpoint_of(hf_model(family)), **config))


def test_a_mixture_of_experts_in_a_dense_family_is_refused() -> None:
    checkpoint = changed(as_gguf(hf_model("qwen2"), "qwen2"), **{"qwen2.expert_count": 8})
    with pytest.raises(LoadError, match="expert_count=8 is not supported"):
        read_config(checkpoint)


def test_experts_that_are_missing_or_left_over_are_named(tmp_path: Path) -> None:
    hf_model("qwen3_moe").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    tensors = {
        name: torch.from_numpy(checkpoint.tensor(name).dequantize()) for name in checkpoint.names()
    }
    stored = MemoryCheckpoint("hf", checkpoint.architecture, checkpoint.config, tensors)
    read_config(stored)
    for name in list(tensors):
        if ".mlp.gate." in name:
            tensors[name] = torch.zeros(7, 32)
    with pytest.raises(
        LoadError,
        match=r"no tensor 'model.layers.0.mlp.experts.6.gate_proj.weight'.*'num_local_experts' is 7",
    ):
        read_config(changed(stored, num_local_experts=7))
    for name in list(tensors):
        if ".mlp.gate." in name:
            tensors[name] = torch.zeros(5, 32)
    with pytest.raises(
        LoadError,
        match=r"'model.layers.0.mlp.experts.5.down_proj.weight', which .* not use \('num_local_exp",
    ):
        read_config(changed(stored, num_local_experts=5))


def test_a_tensor_that_the_family_does_not_use_is_named() -> None:
    checkpoint = checkpoint_of(hf_model("qwen2"))
    checkpoint.tensors["model.layers.1.self_attn.q_norm.weight"] = torch.ones(8)  # type: ignore[index]
    with pytest.raises(
        LoadError, match=r"a tensor 'model.layers.1.self_attn.q_norm.weight', which qwen2 does not"
    ):
        read_config(checkpoint)


@pytest.mark.parametrize(
    ("family", "architecture", "changes", "message"),
    [
        (
            "granite4_mamba",
            "granitehybrid",
            {"attention.head_count_kv": [0, 2, 4]},
            "head_count_kv' is .*, but must be 3 numbers: 0, or one that is the same",
        ),
        (
            "qwen3_5",
            "qwen35",
            {"attention.recurrent_layers": [True, 1, False, True]},
            "recurrent_layers' is .*, but must be a boolean for each of 4",
        ),
        ("qwen3_5", "qwen35", {"ssm.inner_size": 66}, "4 heads cannot divide 66 values evenly"),
        ("qwen3_5", "qwen35", {"full_attention_interval": 2}, "no tensor 'blk.1.attn_q.weight'"),
    ],
)
def test_a_hybrid_gguf_that_does_not_fit_says_where(
    family: str, architecture: str, changes: dict[str, Any], message: str
) -> None:
    metadata = next(each[3] for each in SPELLINGS if each[0] == family)
    checkpoint = as_gguf(hf_model(family), architecture, {**metadata, **changes})
    with pytest.raises(LoadError, match=message):
        read_config(checkpoint)


def test_a_size_may_be_a_list_of_equal_numbers() -> None:
    """As some writers say what other families have different in each layer."""
    model = hf_model("llama")
    checkpoint = as_gguf(model, "llama", {})
    config, _ = read_config(checkpoint)
    number = config.num_kv_heads
    listed = as_gguf(model, "llama", {"attention.head_count_kv": [number] * config.num_layers})
    assert read_config(listed)[0] == config
    other = as_gguf(model, "llama", {"attention.head_count_kv": [number, number + 1]})
    with pytest.raises(LoadError, match=r"layers that differ in 'llama\.attention"):
        read_config(other)


def test_a_recurrent_checkpoint_that_is_cut_off_names_what_is_missing() -> None:
    checkpoint = checkpoint_of(hf_model("qwen3_5"))
    for name in [name for name in checkpoint.tensors if "layers.3.linear_attn" in name]:
        del checkpoint.tensors[name]  # type: ignore[attr-defined]
    with pytest.raises(
        LoadError, match=r"no tensor 'model.layers.3.linear_attn.in_proj_qkv.weight'"
    ):
        load_torch(checkpoint)


def test_a_model_that_only_sees_is_refused_by_name() -> None:
    checkpoint = replace(checkpoint_of(hf_model("llama")), architecture="SiglipModel")
    with pytest.raises(LoadError, match="unknown architecture 'SiglipModel'"):
        read_config(checkpoint)


def test_gpt_oss_in_mxfp4_is_the_reference_over_its_values(tmp_path: Path) -> None:
    """Its blocks are outputs by inputs, the reference's floats the other way round."""
    model = hf_model("gpt_oss", intermediate_size=64)
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    random = np.random.default_rng(0)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, num_in, num_out = tensors.pop(name).shape
        shape = (experts, num_out, num_in // 32)
        blocks = random.integers(0, 256, (*shape, 16)).astype(np.uint8)
        scales = random.integers(122, 126, shape).astype(np.uint8)
        codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*shape, 32)
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        values = np.concatenate((sizes, -sizes))[codes] * 2.0 ** (scales[..., None] - 127.0)
        model.get_parameter(name).data = torch.from_numpy(
            values.reshape(experts, num_out, num_in).swapaxes(1, 2).astype(np.float32)
        )
        tensors |= {f"{name}_blocks": torch.from_numpy(blocks)}
        tensors |= {f"{name}_scales": torch.from_numpy(scales)}
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    decoder = load_torch(open_checkpoint(tmp_path))
    assert_close(prefill(decoder, TOKENS), hf_logits(model, TOKENS))


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    load_model(
        checkpoint_of(hf_model("qwen2", hidden_size=64)),
        progress=lambda done, all_: seen.append((done, all_)),
    )
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)
    assert len({total for _, total in seen}) == 1


def test_each_tensor_is_read_ahead_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(hf_model("qwen2"))
    config, arch = read_config(checkpoint)
    asked: list[str] = []
    monkeypatch.setattr(StoredTensor, "read_ahead", lambda self: asked.append(self.name))
    every = [name for name, _ in stored_weights(checkpoint, arch, config)]
    in_order = asked[:]
    assert len(in_order) == len(set(in_order)) == len(every)
    asked.clear()
    monkeypatch.setattr(loader, "AHEAD_NBYTES", 1)
    weights = stored_weights(checkpoint, arch, config)
    for count in (1, 2, 3):
        next(weights)
        assert asked == in_order[:count]


QUANTS = {"int8": (Type.Q8_0, Type.Q8_0), "int4": (Type.Q4_1, Type.Q8_0)}
"""How the matrices, and the embedding and the head, are stored after it."""


def half_model() -> transformers.PreTrainedModel:
    """A random model, wide enough for blocks and for the native kernels."""
    return hf_model("llama", hidden_size=64, intermediate_size=96, head_dim=16)


def rounded(quant: str) -> transformers.PreTrainedModel:
    """The reference: that model with the values that the blocks of its bfloat16 values stand for."""
    model = half_model()
    body, vocabulary = QUANTS[quant]
    for name, weight in model.named_parameters():
        values = weight.detach().bfloat16().float()
        if weight.ndim == 2:
            dtype = vocabulary if "embed" in name or "lm_head" in name else body
            blocks = gguf.quantize(values.numpy(), dtype)
            values = torch.from_numpy(gguf.dequantize(blocks, dtype))
        weight.data = values
    return model


@pytest.mark.parametrize("quant", QUANTS)
def test_a_rounded_folder_is_the_reference_over_its_values(quant: str, tmp_path: Path) -> None:
    half_model().bfloat16().save_pretrained(tmp_path)
    expected = hf_logits(rounded(quant), TOKENS)
    checkpoint = open_checkpoint(tmp_path)
    assert_close(prefill(load_torch(checkpoint, quant=quant), TOKENS), expected)
    assert not torch.allclose(prefill(load_torch(checkpoint), TOKENS), expected, atol=1e-3)


@pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
@pytest.mark.parametrize("quant", QUANTS)
def test_rounded_weights_are_the_same_in_the_native_kernels(quant: str, tmp_path: Path) -> None:
    half_model().bfloat16().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    reference = load_torch(checkpoint, quant=quant)
    model = load_model(checkpoint, quant=quant)
    assert isinstance(model, NativeDecoder)
    for name in ("embed", "layers.0.q", "layers.1.down"):
        expected = reference.weights[name]
        out = np.empty(expected.shape, np.float32)
        model._native.unpack(name, out)
        np.testing.assert_array_equal(out, expected.numpy())
    ours, theirs = prefill(model, TOKENS), prefill(reference, TOKENS)
    assert torch.cosine_similarity(ours, theirs, dim=-1).min() > 0.99  # activations have 8 bits


@pytest.mark.parametrize("quant", ["none", *QUANTS])
def test_bytes_are_known_without_reading_weights(quant: str, tmp_path: Path) -> None:
    half_model().bfloat16().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config, arch = read_config(checkpoint)
    nbytes = sum(
        quantize_weight(name, stored, quant).nbytes
        for name, stored in stored_weights(checkpoint, arch, config)
        if not name.endswith(".bias")
    )
    assert weights_nbytes(checkpoint, quant) == nbytes


def test_an_unknown_rounding_is_refused(tmp_path: Path) -> None:
    half_model().bfloat16().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="unknown quantization 'int5': did you mean 'int"):
        load_torch(open_checkpoint(tmp_path), quant="int5")


def test_the_native_kernels_run_on_a_cpu_and_tritons_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = random_config()
    assert choose_backend(config, "cpu").__name__.endswith("native")
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    assert choose_backend(config, "cuda:1").__name__.endswith("triton")
