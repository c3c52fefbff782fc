"""Hugging Face's quantized floats: FP8 (e4m3) by block, channel or tensor, and the MXFP4 of gpt-oss.

Layouts are those of transformers (integrations/finegrained_fp8, integrations/mxfp4) and compressed-tensors. N rows, K
columns.
"""

from __future__ import annotations

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.weights.codes import FLOAT8_GROUP, FORMATS, Bytes, Codes
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
        pairs = layer.bytes("blocks", "U8").reshape(-1, 16)
        blocks = np.empty((len(pairs), 17), np.uint8)
        blocks[:, 0] = layer.bytes("scales", "U8").reshape(-1)
        # Byte b holds numbers 2 b and 2 b + 1; in a GGUF byte j holds numbers j and j + 16.
        first, second = pairs[:, :8], pairs[:, 8:]
        blocks[:, 1::2] = first & 15 | second << 4
        blocks[:, 2::2] = first >> 4 | second & 0xF0
        return blocks.reshape(experts * num_rows, -1)

    unpacked = (experts, num_rows, 32 * num_blocks)
    return StoredTensor(
        f"{layer.name}.weight", unpacked, FORMATS["mxfp4"], layer.tensor("blocks").data, read
    )
