"""Quantized Hugging Face folders from files to logits, beside transformers with the values of their codes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import transformers

from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.model.tiny import load_torch
from tests.native.models import prefill

TOKENS = tuple(range(0, 60, 3))
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
        }
    },
    "ignore": ["lm_head"],
}
Parts = dict[str, torch.Tensor]


def as_float8(weight: torch.Tensor, is_whole: bool) -> tuple[Parts, torch.Tensor]:
    """A weight in e4m3 with a scale for blocks of 128 x 128 or one; and what it stands for."""
    size = max(weight.shape) if is_whole else 128
    blocks = torch.zeros([-(-n // size) * size for n in weight.shape])
    blocks[: weight.shape[0], : weight.shape[1]] = weight
    blocks = blocks.view(-(-weight.shape[0] // size), size, -1, size)
    scales = blocks.abs().amax((1, 3)) / 448
    wide = scales.repeat_interleave(size, 0).repeat_interleave(size, 1)
    wide = wide[: weight.shape[0], : weight.shape[1]]
    codes = (weight / wide).to(torch.float8_e4m3fn)
    given = scales.reshape(()) if is_whole else scales
    return {"weight": codes, "weight_scale_inv": given}, codes.float() * wide


def as_int8(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """A weight in 8 bits with a scale and a zero point a row; and what it stands for."""
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scales = ((high - low) / 255).half().float()
    zeros = (-128 - low / scales).round().clamp(-128, 127)
    codes = (weight / scales + zeros).round().clamp(-128, 127)
    parts = {"weight": codes.to(torch.int8), "weight_scale": scales}
    return parts | {"weight_zero_point": zeros.to(torch.int8)}, (codes - zeros) * scales


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
MLX = {"bits": 8, "group_size": 32}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def as_nvfp4(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """A weight in pairs of 4-bit floats with e4m3 scales and a factor; and what it stands for."""
    groups = weight.view(weight.shape[0], -1, 16)
    factor = groups.abs().max() / 6 / 448
    scales = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    wide = (scales.float() * factor)[..., None]
    codes = (groups.abs()[..., None] / wide[..., None] - E2M1).abs().argmin(-1)
    codes = (codes + 8 * (groups < 0)).view(weight.shape).to(torch.uint8)
    values = torch.cat((E2M1, -E2M1))[codes.int()].view(groups.shape) * wide
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    parts = {"weight": packed, "weight_scale": scales, "weight_scale_2": factor}
    return parts | {"input_scale": factor.clone()}, values.view(weight.shape)


def as_mlx(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """A weight in 8 bits with a scale and a bias for 32, four codes a word; and what it stands for."""
    groups = weight.view(weight.shape[0], -1, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales, biases = ((high - low) / 255).half(), low.half()
    codes = ((groups - biases.float()) / scales.float()).round().clamp(0, 255)
    values = codes * scales.float() + biases.float()
    words = codes.to(torch.uint8).view(weight.shape).contiguous().view(torch.uint32)
    parts = {"weight": words, "scales": scales[..., 0], "biases": biases[..., 0]}
    return parts, values.view(weight.shape)


WRITERS = {
    "fp8 by block": (lambda weight: as_float8(weight, False), FP8),
    "fp8 by tensor": (lambda weight: as_float8(weight, True), {"quant_method": "fp8"}),
    "int8": (as_int8, INT8),
    "nvfp4": (as_nvfp4, NVFP4),
    "mlx": (as_mlx, MLX),
}


@pytest.mark.parametrize(
    ("form", "closeness"),
    [
        ("fp8 by block", 1e-3),
        ("fp8 by tensor", 1e-3),
        ("int8", 0.05),
        ("nvfp4", 0.05),
        ("mlx", 0.05),
    ],
)
def test_a_folder_is_the_model_of_its_codes(tmp_path: Path, form: str, closeness: float) -> None:
    """Natively FP8 is as close as its fp16 keys and values leave it: rows are not rounded."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=77,
        hidden_size=160,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=128,
    )
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    write, quantization = WRITERS[form]
    ends = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")[: 3 if form == "mlx" else 1]
    for name in [name for name in tensors if name.endswith(ends)]:
        parts, values = write(tensors.pop(name))
        for part, tensor in parts.items():
            tensors[name.replace("weight", part)] = tensor.contiguous()
        reference.get_parameter(name).data = values
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(written | {"quantization_config": quantization})
    )
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0].numpy()
    logits = {
        backend: prefill(load(open_checkpoint(tmp_path)), TOKENS, 64)
        for backend, load in (("torch", load_torch), ("native", load_model))
    }
    np.testing.assert_allclose(logits["torch"], expected, rtol=1e-4, atol=1e-4)
    error = np.abs(logits["native"] - expected).std()
    assert error < closeness * expected.std(), error / expected.std()
