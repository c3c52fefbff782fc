"""Quantized Hugging Face layouts: codes where their writers put them, and folders that contradict themselves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import LoadError
from forerun.weights import int_words
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.hf_layouts import (
    AWQ,
    CASES,
    GROUP,
    LAYER,
    NUM_IN,
    NUM_OUT,
    Arrays,
    awq_gemm,
    awq_gemv,
    compressed,
    folder,
    gptq,
    int_quantized,
    mlx,
    modelopt_nvfp4,
    weight,
)

RANDOM = np.random.default_rng(0)


# --- words ---


def test_words_of_hand_computed_codes() -> None:
    four = np.arange(8, dtype=np.uint8)[None]
    assert int_words.pack(four, 4).view(np.uint32).tolist() == [[0x76543210]]
    assert int_words.pack_awq(four).view(np.uint32).tolist() == [[0x75316420]]
    three = np.array([[7, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 1]], np.uint8)
    # Code 10 is bits 30 to 32: 01 ends the first word, 1 begins the second.
    assert int_words.pack(three, 3).view(np.uint32).tolist() == [[7 | 1 << 6 | 1 << 30, 1 | 1 << 1]]
    eight = np.array([[255, 1, 0, 128]], np.uint8)
    assert int_words.pack(eight, 8).view(np.uint32).tolist() == [[0x800001FF]]


@given(st.sampled_from([2, 3, 4, 5, 6, 8]), st.integers(1, 70), st.integers(0, 9))
def test_words_give_their_codes_back(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (3, count)).astype(np.uint8)
    words = int_words.pack(codes, bits)
    assert words.shape == (3, -(-count * bits // 32))
    np.testing.assert_array_equal(int_words.unpack(words, bits, count), codes)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_words_are_those_of_compressed_tensors(bits: int) -> None:
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = RANDOM.integers(0, 1 << bits, (5, 41)).astype(np.uint8)
    signed = torch.from_numpy(codes.astype(np.int16) - (1 << (bits - 1))).to(torch.int8)
    theirs = package.pack_to_int32(signed, bits)
    np.testing.assert_array_equal(int_words.pack(codes, bits), theirs.numpy())
    along_rows = package.pack_to_int32(signed, bits, packed_dim=0)
    np.testing.assert_array_equal(int_words.pack(codes.T.copy(), bits).T, along_rows.numpy())


# --- folders ---


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_layout(tmp_path: Path, case: str) -> None:
    make, format = CASES[case]
    config, parts, values = make()
    tensor = weight(folder(tmp_path / "m", config, parts))
    assert (tensor.shape, tensor.format.name) == (values.shape, format)
    # compressed-tensors computes in fp16; the others exactly.
    tolerance = 1e-3 if case.startswith("compressed") else 0
    np.testing.assert_allclose(tensor.dequantize(), values, rtol=tolerance)
    for index in (slice(3, 9), np.array([5, 1, 1])):
        np.testing.assert_array_equal(tensor.rows(index).dequantize(), tensor.dequantize()[index])
    twice = tensor.rows(slice(2, 12)).rows(np.array([4, 0]))
    np.testing.assert_array_equal(
        torch.from_numpy(twice.dequantize()), torch.from_numpy(tensor.dequantize())[[6, 2]]
    )


def test_the_old_file_of_autoawq_is_read(tmp_path: Path) -> None:
    _, parts, values = awq_gemm()
    path = folder(tmp_path / "m", AWQ, parts)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    old = {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"}
    (path / "quant_config.json").write_text(json.dumps(old))
    np.testing.assert_array_equal(weight(path).dequantize(), values)


def test_gptqs_own_config_file_is_read(tmp_path: Path) -> None:
    config, parts, values = gptq()
    path = folder(tmp_path / "m", config, parts)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    quantize_config = {name: value for name, value in config.items() if name != "quant_method"}
    (path / "quantize_config.json").write_text(json.dumps(quantize_config | {"damp_percent": 0.01}))
    np.testing.assert_array_equal(weight(path).dequantize(), values)


AUTOROUND = {
    "auto_round:auto_gptq": gptq,
    "auto_gptq": gptq,
    "auto_round:auto_awq": awq_gemm,
    "auto_round": lambda: gptq(version=2),
}


@pytest.mark.parametrize("layout", AUTOROUND)
def test_autoround_writes_the_layouts_of_others(tmp_path: Path, layout: str) -> None:
    """Its own is GPTQ's with zero points as they are."""
    config, parts, values = AUTOROUND[layout]()
    config = {name: value for name, value in config.items() if name != "checkpoint_format"}
    theirs = {"quant_method": "auto-round", "packing_format": layout, "data_type": "int"}
    path = folder(tmp_path / "m", config | theirs, parts)
    np.testing.assert_array_equal(weight(path).dequantize(), values)


@pytest.mark.parametrize(
    "change",
    [
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
        | {
            "extra_config": {
                r".*layers\.0\.mlp\..*": {"bits": 8},
                "model.layers.0.mlp.up": {"bits": 2},
            }
        },
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
        | {"extra_config": {r".*layers\.0\.mlp\..*": {"bits": 2}, LAYER: {"bits": 8}}},
        {"dynamic": {r"-:.*v_proj": {}, r"+:.*\.0\.mlp": {"bits": 8}}},
    ],
)
def test_layers_may_have_bits_of_their_own(tmp_path: Path, change: dict[str, object]) -> None:
    config, parts, values = gptq(8)
    path = folder(tmp_path / "m", config | {"bits": 4} | change, parts)
    np.testing.assert_array_equal(weight(path).dequantize(), values)


def test_mlx_says_it_under_either_name_and_by_layer(tmp_path: Path) -> None:
    config, parts, values = mlx(8)
    own = {"bits": 4, "group_size": 64, LAYER: config, "lm_head": False}
    path = folder(tmp_path / "m", own, parts)
    np.testing.assert_array_equal(weight(path).dequantize(), values)
    whole = {"architectures": ["LlamaForCausalLM"], "quantization": own}
    (path / "config.json").write_text(json.dumps(whole))
    np.testing.assert_array_equal(weight(path).dequantize(), values)


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    config, parts, values = modelopt_nvfp4()
    path = folder(tmp_path / "m", config, parts)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    theirs = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": theirs}))
    np.testing.assert_array_equal(weight(path).dequantize(), values)


def test_groups_of_a_mixed_config_have_their_schemes(tmp_path: Path) -> None:
    config, parts, values = compressed(4, is_symmetric=True)
    floats = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": floats},
        "group_1": {"targets": ["re:.*mlp.*"], **config["config_groups"]["group_0"]},  # type: ignore[index,dict-item]
    }
    groups["group_1"]["targets"] = ["re:.*mlp.*"]
    mixed = config | {"format": "mixed-precision", "config_groups": groups}
    np.testing.assert_allclose(
        weight(folder(tmp_path / "m", mixed, parts)).dequantize(), values, rtol=1e-3
    )


def without(parts: Arrays, name: str) -> Arrays:
    return {key: value for key, value in parts.items() if key != name}


@pytest.mark.parametrize(
    ("make", "config", "change", "message"),
    [
        (awq_gemm, {"quant_method": "bnb"}, {}, "unknown quantization method 'bnb'"),
        (
            gptq,
            {"quant_method": "auto-round", "packing_format": "auto_round:fp8"},
            {},
            "unknown packing_format of AutoRound 'fp8'",
        ),
        (
            modelopt_nvfp4,
            {"quant_algo": "W4A8_AWQ"},
            {},
            "unknown quant_algo of ModelOpt 'W4A8_AWQ'",
        ),
        (modelopt_nvfp4, {}, {"pre_quant_scale": np.ones(64)}, "take a folder in NVFP4 or FP8 wi"),
        (modelopt_nvfp4, {}, {"weight_scale_2": np.float32(np.inf)}, "must have one factor"),
        (lambda: mlx(4), {"mode": "mxfp8"}, {}, "quantized by MLX as 'mxfp8', which is not supp"),
        (
            lambda: mlx(4),
            {},
            {"weight": np.zeros((2, 16, 8), np.uint32)},
            "a tensor for each expert",
        ),
        (modelopt_nvfp4, {}, {"weight": np.zeros((2, 16, 32), np.uint8)}, "is read as a matrix"),
        (gptq, {"dynamic": {"+:(": {"bits": 8}}}, {}, "'dynamic' has a pattern that is none"),
        (lambda: mlx(4), {"bits": 7}, {}, "'bits' of the quantization config is 7"),
        (lambda: mlx(4), {}, {"biases": None}, "no tensor '.*up_proj.biases'"),
        (awq_gemm, {"version": "gemv_fast"}, {}, "unknown version of AWQ 'gemv_fast'"),
        (awq_gemm, {"bits": 3}, {}, "'bits' of the quantization config is 3, but must be 4"),
        (awq_gemm, {"group_size": 48}, {}, "'group_size' is 48, but '.*up_proj' has 64 inputs"),
        (awq_gemm, {"group_size": 16}, {}, "groups of '.*up_proj' must be multiples of 32"),
        (awq_gemm, {"group_size": 64}, {}, r"up_proj.scales' should be \(1, 16\), but is \(2, 16"),
        (awq_gemm, {}, {"scales": None}, "no tensor '.*up_proj.scales'"),
        (awq_gemm, {}, {"qweight": np.zeros((64, 2), np.int64)}, "qweight' is I64, but must be I"),
        (awq_gemv, {}, {"qzeros": None}, "no tensor '.*up_proj.qzeros'"),
        (gptq, {"bits": 5}, {}, "'bits' of the quantization config is 5"),
        (gptq, {}, {"g_idx": np.full(64, 9, np.int32)}, "g_idx' names groups beyond 2"),
        (gptq, {}, {"g_idx": np.ones(64, np.int32)}, "g_idx' names not every group 32 times"),
        (int_quantized, {"format": "nvfp4"}, {}, "unknown format of compressed-tensors 'nvfp4'"),
        (int_quantized, {"config_groups": {}}, {}, "no 'config_groups'"),
        (
            int_quantized,
            {"config_groups": {"a": {"targets": ["re:.*head"]}}},
            {},
            "no group of the quantization config targets '.*up_proj'",
        ),
        (awq_gemm, {}, {"qweight": None, "qzeros": None}, r"no tensor is called '\*.qweight'"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path,
    make: Callable[[], tuple[dict[str, object], Arrays, np.ndarray]],
    config: dict[str, object],
    change: dict[str, np.ndarray | None],
    message: str,
) -> None:
    given_config, parts, _ = make()
    parts = {k: v for k, v in (parts | change).items() if v is not None}
    path = folder(tmp_path / "m", given_config | config, parts)
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_shard_that_is_missing_or_cut_is_named_with_its_tensors(
    tmp_path: Path, is_cut: bool
) -> None:
    config, parts, _ = awq_gemm()
    path = folder(tmp_path / "m", config, parts)
    shard = path / "model-00001-of-00001.safetensors"
    (path / "model.safetensors").rename(shard)
    weight_map = {f"{LAYER}.{part}": shard.name for part in parts}
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert weight(path).shape == (NUM_OUT, NUM_IN)
    if is_cut:
        shard.write_bytes(shard.read_bytes()[:-9])
    else:
        shard.unlink()
    with pytest.raises(
        LoadError, match=r"00001.safetensors cannot be read: .*up_proj.qweight' and"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_that_are_no_numbers_are_refused_when_read(tmp_path: Path, value: float) -> None:
    config, parts, _ = awq_gemm()
    parts["scales"] = parts["scales"].copy()
    parts["scales"][1, 3] = value
    tensor = weight(folder(tmp_path / "m", config, parts))
    with pytest.raises(LoadError, match=r"the scales of '.*up_proj.weight' are not all numbers"):
        tensor.codes()
