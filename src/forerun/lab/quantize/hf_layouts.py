"""Rounded matrices as the tensors of a Hugging Face layout: the reverse of `weights/hf_quantized.py`.

N outputs, K inputs, g inputs share a scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from forerun.core.errors import ConfigError, unknown
from forerun.weights.codes import Codes
from forerun.weights.int_words import pack, pack_awq

Layout = Literal["awq", "compressed-tensors"]
LAYOUTS: tuple[Layout, ...] = ("awq", "compressed-tensors")
FLAT_GROUP = 32
"""Inputs that share a scale in a layer that is not flattened, in a folder of those that are."""


def layout_for(name: str | None, bits: int, group: int | None) -> Layout:
    """Choose the given layout, or one that fits: AWQ `gemm` has 4 bits in groups. Raises ConfigError."""
    fits_awq = bits == 4 and group is not None
    if name is None:
        return "awq" if fits_awq else "compressed-tensors"
    if name not in LAYOUTS:
        raise ConfigError(unknown("format", name, LAYOUTS))
    if name == "awq" and not fits_awq:
        raise ConfigError(
            "format awq holds 4 bits in groups of 32, 64 or 128: give --format compressed-tensors"
        )
    return "awq" if name == "awq" else "compressed-tensors"


def tensors_of(layer: str, codes: Codes, bits: int, layout: Layout) -> dict[str, np.ndarray]:
    """Return the tensors of a linear layer. Raises ConfigError for a matrix that the layout cannot hold."""
    assert codes.zeros is not None
    num_out, num_in = codes.codes.shape
    unsigned = codes.codes.view(np.uint8)
    scales, zeros = codes.scales.astype(np.float16), codes.zeros.astype(np.uint8)
    named: dict[str, np.ndarray]
    if layout == "awq":
        if num_out % 8:
            raise ConfigError(
                f"'{layer}' has {num_out} outputs, but format awq needs a multiple of 8: "
                "give --format compressed-tensors"
            )
        named = {
            "qweight": pack_awq(unsigned.T),
            "qzeros": pack_awq(zeros.T),
            "scales": np.ascontiguousarray(scales.T),
        }
    elif bits == 8:
        named = {"weight": (unsigned ^ np.uint8(128)).view(np.int8), "weight_scale": scales}
    else:
        named = {
            "weight_packed": pack(unsigned, bits),
            "weight_scale": scales,
            "weight_shape": np.array([num_out, num_in], np.int64),
            "weight_zero_point": np.ascontiguousarray(pack(zeros.T, bits).T),
        }
    return {f"{layer}.{part}": array for part, array in named.items()}


def flat_tensors(layer: str, codes: Codes) -> dict[str, np.ndarray]:
    """Return the tensors of a flattened layer; codes within -8..7 are packed as 4 bits."""
    rows = codes.flat
    assert rows is not None
    signed = codes.codes.view(np.int8)
    named: dict[str, np.ndarray] = {
        "weight_scale": codes.scales.reshape(-1),
        "input_step": rows.steps.copy(),  # matrices share them
    }
    if not rows.is_by_row:
        named["input_pieces"] = rows.pieces.astype(np.int32)
        named["input_limit"] = np.array([rows.limit], np.int32)
    if rows.uses_hadamard:
        named["input_hadamard"] = np.array([1], np.int32)
    if signed.min(initial=0) >= -8 and signed.max(initial=0) <= 7 and signed.shape[1] % 8 == 0:
        named["weight_packed"] = pack((signed + np.int8(8)).view(np.uint8), 4)
    else:
        named["weight"] = signed
    return {f"{layer}.{part}": array for part, array in named.items()}


def flat_config() -> dict[str, object]:
    """Return the `quantization_config` of a folder of flattened layers, and others of 8 bits in groups."""
    return {
        "quant_method": "flatten",
        "split": "spill",
        "group_size": FLAT_GROUP,
    }


def config_of(
    layout: Layout, bits: int, group: int | None, left_alone: Sequence[str]
) -> dict[str, object]:
    """Return the `quantization_config` of config.json; linear layers that keep their precision are `left_alone`."""
    if layout == "awq":
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": bits,
            "group_size": group,
            "zero_point": True,
            "modules_to_not_convert": list(left_alone) or None,
        }
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": bits == 8,
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
    }
    format = "int-quantized" if bits == 8 else "pack-quantized"
    scheme = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": format,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": list(left_alone),
    }
