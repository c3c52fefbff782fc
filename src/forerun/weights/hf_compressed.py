"""compressed-tensors (its compressors): integers by group, channel or tensor, packed or not, and FP8."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.weights import int_words
from forerun.weights.codes import Codes
from forerun.weights.hf_floats import compressed_float8, compressed_mxfp4, pairs_of_float4
from forerun.weights.hf_layer import Config, PackedLayer, integer
from forerun.weights.stored import StoredTensor

COMPRESSED_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
_STRATEGIES = {"int": ("group", "channel", "tensor"), "float": ("channel", "tensor", "block")}


def compressed(layer: PackedLayer) -> StoredTensor:
    """Read a layer by the scheme of the config's group that targets it. Raises LoadError."""
    weights = _scheme(layer)
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    given = (kind, weights.get("num_bits"), strategy, weights.get("group_size"))
    if given in _FLOAT4:
        return _FLOAT4[given](layer)
    is_float = kind == "float" and weights.get("num_bits") == 8
    if strategy not in _STRATEGIES.get("float" if is_float else str(kind), ()) or (
        kind == "float" and not is_float
    ):
        raise LoadError(
            f"'{layer.name}' is quantized as {short_repr(kind)} of {short_repr(weights.get('num_bits'))} bits "
            f"by {short_repr(strategy)}, which is not supported: int by group, channel or tensor is, "
            "float of 8 bits by channel, tensor or block, and the float of 4 bits of NVFP4 and MXFP4"
        )
    return compressed_float8(layer, weights) if is_float else integers(layer, weights)


def _nvfp4(layer: PackedLayer) -> StoredTensor:
    """Read weight_packed, weight_scale and weight_global_scale (1,), by which scales were multiplied."""
    with np.errstate(divide="ignore"):
        factors = np.reciprocal(layer.floats("weight_global_scale").reshape(-1))
    return pairs_of_float4(layer, "weight_packed", factors)


_FLOAT4: Mapping[object, Callable[[PackedLayer], StoredTensor]] = {
    ("float", 4, "tensor_group", 16): _nvfp4,
    ("float", 4, "group", 32): compressed_mxfp4,
}


def integers(layer: PackedLayer, weights: Config) -> StoredTensor:
    """Read weight_packed (N, K b / 32) or int8 weight (N, K), weight_scale and zero points (N, K / g)."""
    bits = integer(weights, "num_bits", (2, 3, 4, 8))
    is_packed = layer.has("weight_packed")
    if is_packed:
        layer.need("weight_shape", (2,))
        num_out, num_in = (int(size) for size in _numbers(layer, "weight_shape"))
        layer.need("weight_packed", (num_out, -(-num_in * bits // 32)), " ('weight_shape')")
    else:
        num_out, num_in = layer.bytes("weight").shape
    size = weights.get("group_size") if weights.get("strategy") == "group" else None
    group = layer.group("group_size", size, num_in)
    num_groups, middle = num_in // group, 1 << (bits - 1)
    is_single = layer.tensor("weight_scale").shape in ((), (1,)) and num_groups == 1
    if not is_single:
        layer.need("weight_scale", (num_out, num_groups), f" ('group_size' is {short_repr(size)})")
    is_symmetric = weights.get("symmetric", True) is True
    is_zero_packed = not is_symmetric and layer.tensor("weight_zero_point").format.name == "I32"
    if is_zero_packed:
        layer.need("weight_zero_point", (-(-num_out * bits // 32), num_groups))
    elif not is_symmetric:
        layer.need("weight_zero_point", layer.tensor("weight_scale").shape)
        layer.bytes("weight_zero_point")
    order = layer.order("weight_g_idx", num_in, group)

    def zeros() -> np.ndarray:
        if is_symmetric:
            return np.full((num_out, num_groups), middle, np.float32)
        if is_zero_packed:
            packed = np.ascontiguousarray(layer.words("weight_zero_point").T)
            unpacked = int_words.unpack(packed, bits, num_out).T
        else:
            signed = layer.bytes("weight_zero_point").view(np.int8).reshape(-1, num_groups)
            unpacked = np.broadcast_to(signed.astype(np.int16) + middle, (num_out, num_groups))
        return np.ascontiguousarray(unpacked, np.float32)

    def read() -> Codes:
        if is_packed:
            codes = int_words.unpack(layer.words("weight_packed"), bits, num_in)
        else:
            codes = layer.bytes("weight") + np.uint8(middle)
        scales = layer.floats("weight_scale").reshape(-1, num_groups)
        scales = np.ascontiguousarray(np.broadcast_to(scales, (num_out, num_groups)))
        return Codes(codes, scales, zeros=zeros(), groups=order)

    part = "weight_packed" if is_packed else "weight"
    return layer.weight(
        part, (num_out, num_in), bits, read, is_symmetric=is_symmetric, has_order=order is not None
    )


def _numbers(layer: PackedLayer, part: str) -> np.ndarray:
    """Return a short tensor of int32 or int64."""
    tensor = layer.tensor(part)
    if tensor.format.name not in ("I32", "I64"):
        raise LoadError(f"tensor '{tensor.name}' is {tensor.format.name}, but must be I64")
    dtype = np.int64 if tensor.format.name == "I64" else np.int32
    return np.ascontiguousarray(tensor.data).view(dtype).reshape(-1)


def _scheme(layer: PackedLayer) -> Config:
    """Return the `weights` of the config's group whose targets name the layer, or else its class. Raises LoadError."""
    groups = layer.config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise LoadError("the quantization config has no 'config_groups'")
    matching: list[object] = []
    for group in groups.values():
        targets = group.get("targets", []) if isinstance(group, Mapping) else []
        for target in targets:
            if target == "Linear":
                matching.append(group)
            elif re.match(target[3:], layer.name) if target[:3] == "re:" else target == layer.name:
                matching.insert(0, group)
    weights = matching[0].get("weights") if matching and isinstance(matching[0], Mapping) else None
    if not isinstance(weights, Mapping):
        raise LoadError(f"no group of the quantization config targets '{layer.name}'")
    return weights
