"""Weights as the writers of quantized folders lay them out, and the numbers that they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from forerun.weights import int_words
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.stored import StoredTensor

NUM_OUT, NUM_IN, GROUP = 16, 64, 32
LAYER = "model.layers.0.mlp.up_proj"
RANDOM = np.random.default_rng(0)
Arrays = dict[str, Any]
"""Of numpy, or of torch where numpy lacks the type."""


def folder(path: Path, quantization: dict[str, object], parts: Arrays, **config: object) -> Path:
    path.mkdir(exist_ok=True)
    whole = {"architectures": ["LlamaForCausalLM"], "quantization_config": quantization} | config
    (path / "config.json").write_text(json.dumps(whole))
    tensors = {f"{LAYER}.{part}": torch.as_tensor(a).contiguous() for part, a in parts.items()}
    tensors["model.norm.weight"] = torch.ones(4)
    safetensors.torch.save_file(tensors, path / "model.safetensors")
    return path


def weight(path: Path) -> StoredTensor:
    checkpoint = open_checkpoint(path)
    assert checkpoint.names() == {f"{LAYER}.weight", "model.norm.weight"}
    return checkpoint.tensor(f"{LAYER}.weight")


def sample(bits: int = 4, num_groups: int = NUM_IN // GROUP) -> tuple[np.ndarray, ...]:
    """Codes (N, K), zero points and fp16 scales (N, groups)."""
    codes = RANDOM.integers(0, 1 << bits, (NUM_OUT, NUM_IN))
    zeros = RANDOM.integers(1, 1 << bits, (NUM_OUT, num_groups))
    return codes, zeros, RANDOM.uniform(0.01, 2, zeros.shape).astype(np.float16)


def expected(codes: np.ndarray, zeros: np.ndarray | int, scales: np.ndarray) -> np.ndarray:
    group = codes.shape[1] // scales.shape[1]
    wide = np.repeat(np.broadcast_to(zeros, scales.shape), group, axis=1)
    return (codes - wide) * np.repeat(scales.astype(np.float32), group, axis=1)


def nibbles_along_columns(table: np.ndarray, order: list[int]) -> np.ndarray:
    """Nibble i of word (r, c) is table[r, 8 c + order[i]]."""
    rows, columns = table.shape
    out = np.zeros((rows, columns // 8), np.uint32)
    for i, column in enumerate(order):
        out |= table[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return out.view(np.int32)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}


def awq_gemm() -> tuple[dict[str, object], Arrays, np.ndarray]:
    codes, zeros, scales = sample()
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {
        "qweight": nibbles_along_columns(codes.T, order),
        "qzeros": nibbles_along_columns(zeros.T, order),
        "scales": scales.T,
    }
    return AWQ, parts, expected(codes, zeros, scales)


def awq_gemv() -> tuple[dict[str, object], Arrays, np.ndarray]:
    codes, zeros, scales = sample()
    padded = np.zeros((NUM_OUT, 32), np.int64)
    padded[:, : zeros.shape[1]] = zeros
    wide = np.zeros((NUM_OUT, 32), np.float16)
    wide[:, : zeros.shape[1]] = scales
    natural = list(range(8))
    parts = {
        "qweight": nibbles_along_columns(codes, natural),
        "qzeros": nibbles_along_columns(padded, natural),
        "scales": wide,
    }
    return AWQ | {"version": "gemv"}, parts, expected(codes, zeros, scales)


def gptq_parts(codes: np.ndarray, stored_zeros: np.ndarray, bits: int) -> Arrays:
    """One bit stream a column of qweight and a row of qzeros, bit by bit."""

    def stream(row: np.ndarray) -> np.ndarray:
        value = sum(int(code) << bits * i for i, code in enumerate(row))
        count = len(row) * bits // 32
        return np.array([value >> 32 * i & 0xFFFFFFFF for i in range(count)], np.uint32)

    return {
        "qweight": np.stack([stream(row) for row in codes], axis=1).view(np.int32),
        "qzeros": np.stack([stream(row) for row in stored_zeros.T]).view(np.int32),
    }


def gptq(
    bits: int = 4,
    *,
    version: int = 1,
    is_ordered: bool = False,
    is_symmetric: bool = True,
    group: int = GROUP,
) -> tuple[dict[str, object], Arrays, np.ndarray]:
    num_groups = 1 if group == -1 else NUM_IN // group
    codes, zeros, scales = sample(bits, num_groups)
    codes, zeros, scales = (
        np.tile(x, (2, 1)) for x in (codes, zeros, scales)
    )  # 32 rows: whole words
    if bits == 8 and is_symmetric:
        zeros[:] = 128
    parts = gptq_parts(codes, zeros - (version == 1), bits) | {"scales": scales.T}
    values = expected(codes, zeros, scales)
    if is_ordered:
        groups = RANDOM.permutation(np.arange(NUM_IN) // GROUP).astype(np.int32)
        parts["g_idx"] = groups
        values = (codes - zeros[:, groups]) * scales.astype(np.float32)[:, groups]
    else:
        parts["g_idx"] = (np.arange(NUM_IN) * num_groups // NUM_IN).astype(np.int32)
    config: dict[str, object] = {"quant_method": "gptq", "bits": bits, "group_size": group}
    return (config | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), parts, values)


def scheme(bits: int, strategy: str, **options: object) -> dict[str, object]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy} | options
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    packed = "int-quantized" if bits == 8 else "pack-quantized"
    return {
        "quant_method": "compressed-tensors",
        "format": packed,
        "config_groups": {"group_0": group},
    }


def compressed(bits: int, *, is_symmetric: bool) -> tuple[dict[str, object], Arrays, np.ndarray]:
    """By the package itself: it compresses, and its own decompression is what is expected."""
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    codes, zeros, scales = sample(bits)
    middle = 1 << (bits - 1)
    options = {"group_size": GROUP, "symmetric": is_symmetric}
    config = scheme(bits, "group", **options)
    args = quantization.QuantizationArgs(num_bits=bits, strategy="group", **options)
    their_scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight_scale": torch.from_numpy(scales)}
    if not is_symmetric:
        state["weight_zero_point"] = torch.from_numpy(zeros - middle).to(torch.int8)
    values = expected(codes, middle if is_symmetric else zeros, scales)
    state["weight"] = torch.from_numpy(values)
    packer = package.PackedQuantizationCompressor
    packed = packer.compress(state, their_scheme)
    theirs = packer.decompress(packed, their_scheme)["weight"].float().numpy()
    return config, {name: x.numpy() for name, x in packed.items()}, theirs


def int_quantized() -> tuple[dict[str, object], Arrays, np.ndarray]:
    codes, _, scales = sample(8, 1)
    signed = (codes - 128).astype(np.int8)
    parts = {"weight": signed, "weight_scale": scales}
    return scheme(8, "channel"), parts, expected(codes, 128, scales)


def naive(strategy: str, **options: object) -> tuple[dict[str, object], Arrays, np.ndarray]:
    """Unpacked integers or e4m3, by the package itself; sizes that blocks do not divide."""
    package = pytest.importorskip("compressed_tensors.compressors.naive_quantized.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    config = scheme(8, strategy, **options)
    if options.get("type") == "float":
        config["format"] = "float-quantized"
    args = quantization.QuantizationArgs(num_bits=8, strategy=strategy, **options)
    theirs = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    num_out, num_in = (40, 320) if "type" in options else (NUM_OUT, NUM_IN)
    weight = torch.from_numpy(RANDOM.standard_normal((num_out, num_in)).astype(np.float32))
    shape = {
        "tensor": (1,),
        "channel": (num_out, 1),
        "group": (num_out, num_in // GROUP),
        "block": (-(-num_out // 16), -(-num_in // 128)),
    }[strategy]
    state = {"weight": weight, "weight_scale": torch.from_numpy(RANDOM.uniform(0.01, 0.03, shape))}
    state["weight_scale"] = state["weight_scale"].to(torch.bfloat16).float()
    if options.get("symmetric") is False:
        state["weight_zero_point"] = torch.from_numpy(RANDOM.integers(-128, 128, shape)).to(
            torch.int8
        )
    compressor = package.NaiveQuantizationCompressor
    packed = compressor.compress(state, theirs)
    values = compressor.decompress(packed, theirs)["weight"].float().numpy()
    return config, packed, values


def compressed_in_order() -> tuple[dict[str, object], Arrays, np.ndarray]:
    """Columns in another order, as `actorder: group` leaves them."""
    config, parts, _ = compressed(4, is_symmetric=True)
    groups = RANDOM.permutation(np.arange(NUM_IN) // GROUP).astype(np.int32)
    signed = int_words.unpack(parts["weight_packed"], 4, NUM_IN).astype(np.float32) - 8
    values = signed * parts["weight_scale"].astype(np.float32)[:, groups]
    return config, parts | {"weight_g_idx": groups}, values


def float8(block: list[int] | None) -> tuple[dict[str, object], Arrays, np.ndarray]:
    """transformers' FP8: e4m3 and scales in fp32 that multiply it; the last blocks are not whole."""
    num_out, num_in = 40, 320
    height, width = block or (num_out, num_in)
    shape = (-(-num_out // height), -(-num_in // width)) if block else ()
    scales = RANDOM.uniform(0.001, 2, shape).astype(np.float32)
    codes = RANDOM.integers(0, 256, (num_out, num_in)).astype(np.uint8)
    codes[codes & 127 == 127] = 3
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    wide = np.kron(scales.reshape(-(-num_out // height), -1), np.ones((height, width), np.float32))
    parts = {"weight": numbers, "weight_scale_inv": np.asarray(scales)}
    config: dict[str, object] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    config |= {"weight_block_size": block} if block else {}
    return config, parts, numbers.float().numpy() * wide[:num_out, :num_in]


def float4(form: str) -> tuple[dict[str, object], Arrays, np.ndarray]:
    """NVFP4 and MXFP4 by the package itself: it compresses, and its own decompression is what is expected."""
    package = pytest.importorskip(f"compressed_tensors.compressors.{form}.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    is_nv = form == "nvfp4"
    group = 16 if is_nv else 32
    options = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": group}
    options |= {"strategy": "tensor_group" if is_nv else "group"}
    if not is_nv:
        options["scale_dtype"] = torch.uint8
    args = quantization.QuantizationArgs(**options)
    theirs = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    values = torch.from_numpy(RANDOM.standard_normal((NUM_OUT, NUM_IN)).astype(np.float32))
    largest = values.view(NUM_OUT, -1, group).abs().amax(-1) / 6
    state = {"weight": values}
    if is_nv:
        factor = 448 / largest.max()
        scales = (largest * factor).to(torch.float8_e4m3fn).float()
        state |= {"weight_scale": scales, "weight_global_scale": factor.reshape(1)}
    else:
        state["weight_scale"] = torch.exp2(torch.floor(torch.log2(largest)))
    name = "NVFP4PackedCompressor" if is_nv else "MXFP4PackedCompressor"
    packed = getattr(package, name).compress(state, theirs)
    read = getattr(package, name).decompress(packed, theirs)["weight"].float().numpy()
    if is_nv:  # which they compute in bf16
        numbers = package.unpack_fp4_from_uint8(packed["weight_packed"], NUM_OUT, NUM_IN).float()
        read = (numbers * (scales / factor).repeat_interleave(group, 1)).numpy()
    config = scheme(4, str(options["strategy"]), type="float", group_size=group)
    config["format"] = f"{form}-pack-quantized"
    return config, packed | {"input_global_scale": torch.ones(1)}, read


E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def modelopt_nvfp4() -> tuple[dict[str, object], Arrays, np.ndarray]:
    """ModelOpt's NVFP4: pairs of numbers, the first one in the low half of a byte, and two levels of scales."""
    codes = RANDOM.integers(0, 16, (NUM_OUT, NUM_IN)).astype(np.uint8)
    scales = torch.from_numpy(RANDOM.uniform(0.1, 400, (NUM_OUT, NUM_IN // 16))).to(
        torch.float8_e4m3fn
    )
    factor = np.float32(0.00025)
    parts = {
        "weight": codes[:, ::2] | codes[:, 1::2] << 4,
        "weight_scale": scales,
        "weight_scale_2": factor,
        "input_scale": np.float32(0.5),
    }
    wide = np.repeat(scales.float().numpy() * factor, 16, axis=1)
    config: dict[str, object] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    return config, parts, E2M1[codes] * wide


def modelopt_fp8() -> tuple[dict[str, object], Arrays, np.ndarray]:
    _, parts, values = float8(None)
    parts = {"weight": parts["weight"], "weight_scale": parts["weight_scale_inv"]}
    parts |= {"input_scale": np.float32(0.5), "k_scale": np.float32(1)}
    return {"quant_method": "modelopt", "quant_algo": "FP8"}, parts, values


def mlx(bits: int, group: int = GROUP) -> tuple[dict[str, object], Arrays, np.ndarray]:
    """mlx-lm's affine: one stream of bits a row, scales and biases in bf16."""
    codes, _, _ = sample(bits)
    stream = [sum(int(code) << bits * i for i, code in enumerate(row)) for row in codes]
    num_words = NUM_IN * bits // 32
    words = [[value >> 32 * i & 0xFFFFFFFF for i in range(num_words)] for value in stream]
    scales, biases = (
        torch.from_numpy(RANDOM.uniform(low, 1, (NUM_OUT, NUM_IN // group))).to(torch.bfloat16)
        for low in (0.01, -1)
    )
    packed = torch.from_numpy(np.array(words, np.uint32).view(np.int32)).view(torch.uint32)
    scale, bias = (np.repeat(x.float().numpy(), group, axis=1) for x in (scales, biases))
    parts = {"weight": packed, "scales": scales, "biases": biases}
    return (
        {"bits": bits, "group_size": group},
        parts,
        (codes * scale + bias).astype(np.float32),
    )  # rounded once


CASES: dict[str, tuple[Callable[[], tuple[dict[str, object], Arrays, np.ndarray]], str]] = {
    "awq gemm": (awq_gemm, "q4_z"),
    "awq gemv": (awq_gemv, "q4_z"),
    "gptq 2": (lambda: gptq(2), "q4_z"),
    "gptq 3": (lambda: gptq(3), "q4_z"),
    "gptq 4": (lambda: gptq(4), "q4_z"),
    "gptq 8": (lambda: gptq(8), "q8_0"),
    "gptq 8 asymmetric": (lambda: gptq(8, is_symmetric=False), "q8_z"),
    "gptq v2": (lambda: gptq(4, version=2), "q4_z"),
    "gptq wide groups": (lambda: gptq(4, group=NUM_IN), "q4_z"),
    "gptq by row": (lambda: gptq(4, group=-1), "q4_z"),
    "gptq act-order, 8 bits": (lambda: gptq(8, is_ordered=True, is_symmetric=False), "q8_z"),
    "gptq act-order": (lambda: gptq(4, is_ordered=True), "q4_z"),
    "compressed 4": (lambda: compressed(4, is_symmetric=True), "q4_0"),
    "compressed 4 asymmetric": (lambda: compressed(4, is_symmetric=False), "q4_z"),
    "compressed 3 asymmetric": (lambda: compressed(3, is_symmetric=False), "q4_z"),
    "int-quantized": (int_quantized, "q8_0"),
    "int-quantized asymmetric": (lambda: naive("channel", symmetric=False), "q8_z"),
    "int-quantized by tensor": (lambda: naive("tensor"), "q8_0"),
    "int-quantized by group": (lambda: naive("group", group_size=GROUP), "q8_0"),
    "compressed act-order": (compressed_in_order, "q4_0"),
    "compressed fp8 by tensor": (lambda: naive("tensor", type="float"), "f8"),
    "compressed fp8 by channel": (lambda: naive("channel", type="float"), "f8"),
    "compressed fp8 by block": (
        lambda: naive("block", type="float", block_structure=[16, 128]),
        "f8",
    ),
    "fp8 by block": (lambda: float8([16, 128]), "f8"),
    "fp8 by wide block": (lambda: float8([32, 256]), "f8"),
    "fp8 by tensor": (lambda: float8(None), "f8"),
    "compressed nvfp4": (lambda: float4("nvfp4"), "nvfp4"),
    "compressed mxfp4": (lambda: float4("mxfp4"), "mxfp4"),
    "modelopt nvfp4": (modelopt_nvfp4, "nvfp4"),
    "modelopt fp8": (modelopt_fp8, "f8"),
    "mlx 2": (lambda: mlx(2), "q4_1"),
    "mlx 3": (lambda: mlx(3), "q4_1"),
    "mlx 4": (lambda: mlx(4), "q4_1"),
    "mlx 4 wide groups": (lambda: mlx(4, NUM_IN), "q4_1"),
    "mlx 5": (lambda: mlx(5), "q5_1"),
    "mlx 6": (lambda: mlx(6), "q8_m"),
    "mlx 8": (lambda: mlx(8), "q8_m"),
}
