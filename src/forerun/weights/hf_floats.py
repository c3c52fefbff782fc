"""Hugging Face's quantized floats: FP8 (e4m3) by block, channel or tensor, the MXFP4 of gpt-oss, NVFP4.

Layouts are those of transformers (integrations/finegrained_fp8, integrations/mxfp4), compressed-tensors and ModelOpt. N
rows, K columns.
"""

from __future__ import annotations

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.weights.codes import FLOAT8_GROUP, FORMATS, Bytes, Codes, Floats
from forerun.weights.gguf_blocks import nvfp4
from forerun.weights.hf_layer import Config, PackedLayer
from forerun.weights.stored import StoredTensor


def float8(layer: PackedLayer) -> StoredTensor:
    """Read e4m3 weight (N, K) and weight_scale_inv, which multiplies it: one, or one for each block."""
    part = "weight_scale_inv" if layer.has("weight_scale_inv") else "weight_scale"
    return _float8(layer, part, layer.config.get("weight_block_size"))


def compressed_float8(layer: PackedLayer, weights: Config) -> StoredTensor:
    """Read e4m3 weight (N, K) and weight_scale: one, one a row, or one for each block of `block_structure`."""
    return _float8(layer, "weight_scale", weights.get("block_structure"))


def _float8(layer: PackedLayer, part: str, block: object) -> StoredTensor:
    shape = layer.tensor("weight").shape
    if len(shape) != 2:
        raise LoadError(f"tensor '{layer.name}.weight' is {shape}, but FP8 is read as a matrix")
    num_out, num_in = shape
    layer.bytes("weight", "F8_E4M3")
    given = layer.tensor(part).shape
    if given in ((), (1,), (1, 1)):
        height, width = num_out, num_in
    elif given in ((num_out,), (num_out, 1)):
        height, width = 1, num_in
    else:
        height, width = _block_size(layer, block)
        layer.need(part, (-(-num_out // height), -(-num_in // width)), f" (blocks are {block})")

    def read() -> Codes:
        scales = layer.floats(part).reshape(-(-num_out // height), -1)
        of_rows = np.repeat(scales, height, axis=0)[:num_out]
        num_groups = -(-num_in // FLOAT8_GROUP)
        of_groups = np.repeat(of_rows, -(-width // FLOAT8_GROUP), axis=1)[:, :num_groups]
        codes = layer.bytes("weight", "F8_E4M3")
        return Codes(codes, np.ascontiguousarray(of_groups), is_float8=True)

    return StoredTensor(
        f"{layer.name}.weight", shape, FORMATS["f8"], layer.tensor("weight").data, read
    )


def _block_size(layer: PackedLayer, block: object) -> tuple[int, int]:
    """Return the rows and columns of a block of scales. Raises LoadError."""
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int for size in block):
        height, width = block
        if height > 0 and width > 0 and width % FLOAT8_GROUP == 0:
            return height, width
    raise LoadError(
        f"the blocks of '{layer.name}' are {short_repr(block)}, but must be [rows, columns], "
        f"columns a multiple of {FLOAT8_GROUP}"
    )


def mxfp4(layer: PackedLayer) -> StoredTensor:
    """Read blocks (E, N, K / 32, 16) of 32 nibbles, the first in the low half of a byte, and scales (E, N, K / 32).

    They become GGUF's blocks, (E, N, K).
    """
    shape = layer.tensor("blocks").shape
    if len(shape) != 4 or shape[-1] != 16:
        name = layer.name_of("blocks")
        raise LoadError(
            f"tensor '{name}' is {shape}, but must be (experts, rows, columns / 32, 16)"
        )
    experts, num_rows, num_blocks, _ = shape
    layer.need("scales", shape[:-1])
    for part in ("blocks", "scales"):
        layer.bytes(part, "U8")

    def read() -> Bytes:
        pairs = layer.bytes("blocks", "U8").reshape(experts * num_rows, -1, 2, 8)
        scales = layer.bytes("scales", "U8").reshape(*pairs.shape[:2], 1)
        return np.concatenate((scales, _halved(pairs)), axis=-1).reshape(len(pairs), -1)

    unpacked = (experts, num_rows, 32 * num_blocks)
    return StoredTensor(
        f"{layer.name}.weight", unpacked, FORMATS["mxfp4"], layer.tensor("blocks").data, read
    )


def compressed_mxfp4(layer: PackedLayer) -> StoredTensor:
    """Read weight_packed (N, K / 2) of two e2m1 numbers a byte, the first one low, and weight_scale (N, K / 32)."""
    num_out, num_bytes = layer.matrix("weight_packed")
    layer.need("weight_scale", (num_out, num_bytes // 16))
    for part in ("weight_packed", "weight_scale"):
        layer.bytes(part, "U8")

    def read() -> Bytes:
        pairs = layer.bytes("weight_packed", "U8").reshape(num_out, -1, 2, 8)
        scales = layer.bytes("weight_scale", "U8").reshape(num_out, -1, 1)
        return np.concatenate((scales, _halved(pairs)), axis=-1).reshape(num_out, -1)

    data = layer.tensor("weight_packed").data
    return StoredTensor(
        f"{layer.name}.weight", (num_out, 2 * num_bytes), FORMATS["mxfp4"], data, read
    )


def _halved(pairs: Bytes) -> Bytes:
    """Return bytes of numbers j and j + n, as GGUF's blocks have them, of bytes (N, G, 2, n / 2) of 2 j and 2 j + 1."""
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    both = np.stack((first & 15 | second << 4, first >> 4 | second & 0xF0), axis=-1)
    return both.reshape(*first.shape[:2], -1)


def modelopt(layer: PackedLayer) -> StoredTensor:
    """Read ModelOpt's NVFP4, which has weight_scale_2 (), or its FP8. Raises LoadError for inputs that are scaled."""
    if layer.has("pre_quant_scale"):
        raise LoadError(
            f"tensor '{layer.name_of('pre_quant_scale')}' scales inputs, which is not supported: "
            "take a folder in NVFP4 or FP8 without AWQ"
        )
    if not layer.has("weight_scale_2"):
        return float8(layer)
    return pairs_of_float4(layer, "weight", layer.floats("weight_scale_2").reshape(-1))


def pairs_of_float4(layer: PackedLayer, part: str, factors: Floats) -> StoredTensor:
    """Read bytes of two e2m1 numbers (N, K / 2), the first one low, and weight_scale (N, K / 16) of e4m3.

    `factors` (1,) multiply what they stand for. Raises LoadError.
    """
    num_out, num_bytes = layer.matrix(part)
    num_in = 2 * num_bytes
    if num_in % 32:
        raise LoadError(f"'{layer.name}' has {num_in} inputs: NVFP4 is read in multiples of 32")
    layer.need("weight_scale", (num_out, num_in // 16))
    if factors.shape != (1,) or not np.isfinite(factors).all():
        raise LoadError(f"'{layer.name}' must have one factor of its scales, which is a number")
    layer.bytes(part, "U8")
    layer.bytes("weight_scale", "F8_E4M3")

    def read() -> Bytes:
        pairs = layer.bytes(part, "U8").reshape(num_out, -1, 2, 4)
        scales = layer.bytes("weight_scale", "F8_E4M3").reshape(num_out, -1)
        return nvfp4(scales, _halved(pairs), np.broadcast_to(factors, num_out))

    data = layer.tensor(part).data
    return StoredTensor(f"{layer.name}.weight", (num_out, num_in), FORMATS["nvfp4"], data, read)
