"""Folders of mlx-lm: codes of 2 to 8 bits with a scale and a bias for each group, embeddings and heads among them."""

from __future__ import annotations

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.weights import int_words
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.hf_layer import Config, PackedLayer, integer
from forerun.weights.stored import StoredTensor

_GRIDS = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 6: "q8_m", 8: "q8_m"}
"""What holds codes of so many bits exactly."""


def is_mlx(quantization: Config) -> bool:
    """Tell whether a quantization, of a config that names no method, is mlx-lm's."""
    return "quant_method" not in quantization and {"bits", "group_size"} <= quantization.keys()


def mlx(layer: PackedLayer) -> StoredTensor:
    """Read weight (N, K b / 32) of uint32, one stream of bits a row, scales and biases (N, K / g)."""
    mode = layer.config.get("mode", "affine")
    if mode != "affine":
        raise LoadError(
            f"'{layer.name}' is quantized by MLX as {short_repr(mode)}, which is not supported: affine is"
        )
    bits = integer(layer.config, "bits", tuple(_GRIDS))
    num_out, num_words = layer.matrix("weight")
    num_in = num_words * 32 // bits
    group = layer.group("group_size", layer.config.get("group_size"), num_in)
    for part in ("scales", "biases"):
        layer.need(part, (num_out, num_in // group), f" ('group_size' is {group})")
    layer.bytes("weight", "U32")

    def read() -> Codes:
        words = np.ascontiguousarray(layer.bytes("weight", "U32")).view(np.int32)
        codes = int_words.unpack(words, bits, num_in)
        return Codes(codes, layer.floats("scales"), mins=layer.floats("biases"))

    shape, data = (num_out, num_in), layer.tensor("weight").data
    return StoredTensor(f"{layer.name}.weight", shape, FORMATS[_GRIDS[bits]], data, read)
