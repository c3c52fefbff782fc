"""FP8 and MXFP4 of Hugging Face folders: equal to their writers' own values, and refused in words where they lie."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from forerun.core.errors import LoadError
from forerun.model.backends.native import NativeDecoder
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.codes import E4M3
from forerun.weights.stored import stacked
from tests.native.models import EXPERTS
from tests.weights.hf_layouts import LAYER, Arrays, float8, folder, naive, weight

RANDOM = np.random.default_rng(1)
NAME = "model.layers.0.mlp.experts.gate_up_proj"


def test_e4m3_numbers_are_torchs() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert E4M3.tobytes() == theirs.numpy().tobytes() or np.array_equal(
        E4M3, theirs, equal_nan=True
    )


def saved(path: Path, tensors: Arrays, **quantization: object) -> Checkpoint:
    path.mkdir()
    config = {"architectures": ["X"], "quantization_config": quantization}
    (path / "config.json").write_text(json.dumps(config))
    whole = {name: torch.as_tensor(x).contiguous() for name, x in tensors.items()}
    safetensors.torch.save_file(whole, path / "model.safetensors")
    return open_checkpoint(path)


def mxfp4_parts(experts: int = 3, rows: int = 8, width: int = 96) -> Arrays:
    blocks = RANDOM.integers(0, 256, (experts, rows, width // 32, 16)).astype(np.uint8)
    scales = RANDOM.integers(100, 140, (experts, rows, width // 32)).astype(np.uint8)
    return {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}


def test_mxfp4_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    reference = pytest.importorskip("transformers.integrations.mxfp4")
    parts = mxfp4_parts() | {f"{NAME}_bias": np.ones((3, 8), np.float32)}
    checkpoint = saved(tmp_path / "m", parts, quant_method="mxfp4")
    assert checkpoint.names() == {f"{NAME}.weight", f"{NAME}_bias"}
    stored = checkpoint.tensor(f"{NAME}.weight")
    assert (stored.shape, stored.format.name) == ((3, 8, 96), "mxfp4")
    blocks, scales = (torch.from_numpy(parts[f"{NAME}_{part}"]) for part in ("blocks", "scales"))
    theirs = reference.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    values = theirs.transpose(1, 2)
    assert torch.equal(torch.from_numpy(stored.dequantize()), values)
    flat = values.reshape(24, 96)
    rows = stored.merged().rows(slice(1, None, 2))
    assert torch.equal(torch.from_numpy(rows.dequantize()), flat[1::2])
    assert torch.equal(torch.from_numpy(rows.rows(np.array([3, 0])).dequantize()), flat[[7, 1]])
    assert torch.equal(
        torch.from_numpy(stacked([rows, rows]).dequantize()), flat[1::2].repeat(2, 1)
    )
    codes = rows.codes()
    assert np.array_equal(codes.values(), flat[1::2])


def test_mxfp4_experts_are_packed_as_they_are(tmp_path: Path) -> None:
    layer = EXPERTS.layers[0].experts
    assert layer is not None
    rows = layer.num_experts * layer.intermediate_size
    parts = mxfp4_parts(layer.num_experts, layer.intermediate_size, EXPERTS.hidden_size)
    stored = saved(tmp_path / "m", parts, quant_method="mxfp4").tensor(f"{NAME}.weight").merged()
    decoder = NativeDecoder(EXPERTS, num_threads=1)
    decoder.add("layers.0.expert_gate", stored, None)
    form, shape, *_ = decoder._native.packed("layers.0.expert_gate")
    assert (form, tuple(shape)) == ("mxfp4", (rows, EXPERTS.hidden_size))
    out = np.empty((rows, EXPERTS.hidden_size), np.float32)
    decoder._native.unpack("layers.0.expert_gate", out)
    assert np.array_equal(out, stored.dequantize())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{NAME}_scales": None}, "the checkpoint has no tensor '.*gate_up_proj_scales'"),
        (
            {f"{NAME}_scales": np.zeros((3, 8, 2), np.uint8)},
            r"gate_up_proj_scales' should be \(3, 8, 3\), but is \(3, 8, 2\)",
        ),
        (
            {f"{NAME}_blocks": np.zeros((3, 8, 48), np.uint8)},
            r"gate_up_proj_blocks' is \(3, 8, 48\), but must be \(experts, rows, columns / 32, 16\)",
        ),
        ({f"{NAME}_scales": np.zeros((3, 8, 3), np.int8)}, "_scales' is I8, but must be U8"),
        ({f"{NAME}_blocks": None, f"{NAME}_scales": None, "w": np.zeros(3)}, r"called '\*_blocks'"),
    ],
)
def test_mxfp4_that_does_not_fit_is_named(tmp_path: Path, change: Arrays, message: str) -> None:
    parts = {name: x for name, x in (mxfp4_parts() | change).items() if x is not None}
    with pytest.raises(LoadError, match=message) as caught:
        saved(tmp_path / "m", parts, quant_method="mxfp4")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("block", [[16, 128], None])
def test_experts_of_a_folder_are_stacked_as_they_are_coded(
    tmp_path: Path, block: list[int] | None
) -> None:
    one, other = (
        (weight(folder(tmp_path / name, *made[:2])), made[2])
        for name, made in (("a", float8(block)), ("b", float8(block)))
    )
    both = stacked([one[0], other[0]])
    assert (both.format.name, both.shape) == ("f8", (80, 320))
    assert np.array_equal(both.dequantize(), np.concatenate([one[1], other[1]]))


Make = Callable[[], tuple[dict[str, object], Arrays, np.ndarray]]


def by_block() -> tuple[dict[str, object], Arrays, np.ndarray]:
    return float8([16, 128])


@pytest.mark.parametrize(
    ("make", "config", "change", "message"),
    [
        (by_block, {"weight_block_size": [16, 64]}, {}, r"blocks of '.*up_proj' are \[16, 64\], b"),
        (by_block, {"weight_block_size": None}, {}, r"blocks of '.*up_proj' are None, but must"),
        (by_block, {"weight_block_size": [20, 128]}, {}, r"_scale_inv' should be \(2, 3\), but is"),
        (by_block, {}, {"weight": torch.zeros(40, 320).to(torch.float8_e5m2)}, "is F8_E5M2, but m"),
        (by_block, {}, {"weight": torch.zeros(2, 4, 8)}, r"is \(2, 4, 8\), but FP8 is read as a m"),
        (
            lambda: naive("tensor", type="float"),
            {
                "config_groups": {
                    "a": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 4}}
                }
            },
            {},
            "'.*up_proj' is quantized as 'float' of 4 bits by None, which is not supported: int by",
        ),
    ],
)
def test_fp8_that_does_not_fit_is_named(
    tmp_path: Path, make: Make, config: dict[str, object], change: Arrays, message: str
) -> None:
    given, parts, _ = make()
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(folder(tmp_path / "m", given | config, parts | change))
    assert "\n" not in str(caught.value)


def test_e4m3_without_a_scale_is_refused_by_name(tmp_path: Path) -> None:
    config, parts, _ = by_block()
    path = folder(tmp_path / "m", config, parts)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors["model.embed.weight"] = torch.zeros(4, 4).to(torch.float8_e4m3fn)
    safetensors.torch.save_file(tensors, path / "model.safetensors")
    with pytest.raises(LoadError, match=r"'model.embed.weight' is stored as F8_E4M3, which is not"):
        open_checkpoint(path).tensor("model.embed.weight")


@pytest.mark.parametrize("part", ["weight", "weight_scale_inv"])
def test_fp8_with_nan_is_refused_when_read(tmp_path: Path, part: str) -> None:
    config, parts, _ = by_block()
    if part == "weight":
        parts[part].view(torch.uint8)[3, 5] = 0xFF
    else:
        parts[part][1, 1] = np.nan
    stored = weight(folder(tmp_path / "m", config, parts))
    with pytest.raises(
        LoadError, match=rf"'.*up_proj.weight{'' if part == 'weight' else '_scale'}' must hold"
    ):
        torch.from_numpy(stored.dequantize())


def test_what_compressed_tensors_ignores_stays_as_it_is(tmp_path: Path) -> None:
    """`ignore` names layers, or patterns of them: they have no scales."""
    config, parts, values = naive("channel", type="float")
    given = config | {"ignore": ["lm_head", "re:.*gate.*"], "format": "mixed-precision"}
    path = folder(tmp_path / "m", given, parts)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.gate.weight"] = plain = torch.randn(4, 4).to(torch.bfloat16)
    safetensors.torch.save_file(tensors, path / "model.safetensors")
    checkpoint = open_checkpoint(path)
    assert torch.equal(
        torch.from_numpy(checkpoint.tensor("model.layers.0.mlp.gate.weight").dequantize()),
        plain.float(),
    )
    read = checkpoint.tensor(f"{LAYER}.weight").dequantize()
    np.testing.assert_allclose(read, values, rtol=1e-6)
