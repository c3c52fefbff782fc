"""Hugging Face folders whose weights are quantized: AWQ, GPTQ, compressed-tensors, and our own of FlattenQuant.

The tensors of each linear layer become one `<layer>.weight`, so that nothing above this file sees the difference.
Layouts are those of AutoAWQ (modules/linear), AutoGPTQ (qlinear), and compressed-tensors (compressors).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from forerun.core.errors import LoadError, short_repr, unknown
from forerun.weights import int_words
from forerun.weights.codes import FORMATS, Bytes, Codes
from forerun.weights.flat import SPLITS, FlatRows, Split
from forerun.weights.int_words import Words
from forerun.weights.stored import StoredTensor

Tensors = Mapping[str, StoredTensor]
Config = Mapping[str, object]


@dataclass
class PackedLayer:
    """The tensors of one linear layer of an open folder, and the checks that they fit each other."""

    name: str
    config: Config
    tensors: Tensors
    used: list[str] = field(default_factory=list)

    def words(self, part: str) -> Words:
        """Return an int32 tensor. Raises LoadError."""
        return self._data(part, "I32").view(np.int32)

    def floats(self, part: str) -> np.ndarray:
        """Read scales as fp32. Raises LoadError for another type."""
        tensor = self.tensor(part)
        if tensor.format.name not in ("f16", "bf16", "f32"):
            raise LoadError(f"tensor '{tensor.name}' is {tensor.format.name}, not floating-point")
        return tensor.dequantize().numpy()

    def bytes(self, part: str) -> Bytes:
        """Return an int8 tensor, as bytes."""
        return self._data(part, "I8")

    def has(self, part: str) -> bool:
        """Return whether the layer has such a tensor."""
        return f"{self.name}.{part}" in self.tensors

    def need(self, part: str, expected: tuple[int, ...], why: str = "") -> None:
        """Raise LoadError if a tensor has another shape."""
        shape = self.tensor(part).shape
        if shape != expected:
            raise LoadError(
                f"tensor '{self.name}.{part}' should be {expected}, but is {shape}{why}"
            )

    def group(self, key: str, given: object, num_in: int) -> int:
        """Return the columns of a group: -1 or null is a whole row. Raises LoadError if they do not divide the row."""
        size = num_in if given in (None, -1) else given
        if not isinstance(size, int) or isinstance(size, bool) or size < 1 or num_in % size:
            raise LoadError(
                f"'{key}' is {short_repr(given)}, but '{self.name}' has {num_in} inputs, which it does not divide"
            )
        if size % 32:
            raise LoadError(f"'{key}' is {size}: groups of '{self.name}' must be multiples of 32")
        return size

    def weight(
        self,
        part: str,
        shape: tuple[int, int],
        bits: int,
        read: Callable[[], Codes],
        *,
        is_symmetric: bool = False,
        has_order: bool = False,
    ) -> StoredTensor:
        """Return the layer's weight in the format that holds its codes exactly; in another order, as fp16.

        `read` gives unsigned codes with zero points. Raises LoadError if there is no such format.
        """
        name, middle = f"{self.name}.weight", 1 << (bits - 1)
        if bits == 8 and not is_symmetric and not has_order:
            raise LoadError(f"'{self.name}': {bits} bits with zero points are not supported")
        grid = {8: "q8_0", 4: "q4_0"}.get(bits, "q4_z") if is_symmetric else "q4_z"
        format = FORMATS["f16" if has_order else grid]

        def codes() -> Codes:
            codes = read()
            if has_order or format.has_zero:
                return codes
            return Codes((codes.codes - np.uint8(middle)).view(np.int8), codes.scales)

        return StoredTensor(name, shape, format, self.tensor(part).data, codes)

    def _data(self, part: str, dtype: str) -> Bytes:
        tensor = self.tensor(part)
        if tensor.format.name != dtype:
            raise LoadError(f"tensor '{tensor.name}' is {tensor.format.name}, but must be {dtype}")
        return tensor.data

    def tensor(self, part: str) -> StoredTensor:
        """Return one of its tensors as stored. Raises LoadError."""
        name = f"{self.name}.{part}"
        if name not in self.tensors:
            raise LoadError(f"the checkpoint has no tensor '{name}'")
        if name not in self.used:
            self.used.append(name)
        return self.tensors[name]


def integer(config: Config, key: str, allowed: tuple[int, ...]) -> int:
    """Return a number of the quantization config. Raises LoadError."""
    value = config.get(key)
    if value not in allowed or isinstance(value, bool):
        raise LoadError(
            f"'{key}' of the quantization config is {short_repr(value)}, but must be {' or '.join(map(str, allowed))}"
        )
    assert isinstance(value, int)
    return value


def _awq_gemm(layer: PackedLayer) -> StoredTensor:
    """Read qweight (K, N / 8) and qzeros (K / g, N / 8) in AWQ's order along N, scales (K / g, N)."""
    qweight = layer.words("qweight")
    num_in, num_out = qweight.shape[0], 8 * qweight.shape[1]
    group = layer.group("group_size", layer.config.get("group_size"), num_in)
    layer.need("scales", (num_in // group, num_out), f" ('group_size' is {group})")
    if layer.has("qzeros"):
        layer.need("qzeros", (num_in // group, num_out // 8), f" ('group_size' is {group})")

    def read() -> Codes:
        codes = np.ascontiguousarray(int_words.unpack_awq(layer.words("qweight")).T)
        scales = np.ascontiguousarray(layer.floats("scales").T)
        zeros = np.full_like(scales, 8)
        if layer.has("qzeros"):
            zeros = int_words.unpack_awq(layer.words("qzeros")).T.astype(np.float32, order="C")
        return Codes(codes, scales, zeros=zeros)

    has_zeros = layer.has("qzeros")
    return layer.weight("qweight", (num_out, num_in), 4, read, is_symmetric=not has_zeros)


def _awq_gemv(layer: PackedLayer) -> StoredTensor:
    """Read qweight (N, K / 8), qzeros (N, P) and scales (N, 8 P) along K; P is K / g / 8, rounded up and padded."""
    qweight = layer.words("qweight")
    num_out, num_in = qweight.shape[0], 8 * qweight.shape[1]
    num_groups = num_in // layer.group("group_size", layer.config.get("group_size"), num_in)
    padded = layer.words("qzeros").shape[1]
    if 8 * padded < num_groups:
        raise LoadError(f"tensor '{layer.name}.qzeros' holds fewer than {num_groups} groups")
    layer.need("qzeros", (num_out, padded))
    layer.need("scales", (num_out, 8 * padded))

    def read() -> Codes:
        zeros = int_words.unpack(layer.words("qzeros"), 4, num_groups).astype(np.float32)
        scales = np.ascontiguousarray(layer.floats("scales")[:, :num_groups])
        codes = int_words.unpack(layer.words("qweight"), 4, num_in)
        return Codes(codes, scales, zeros=zeros)

    return layer.weight("qweight", (num_out, num_in), 4, read)


def _gptq(layer: PackedLayer) -> StoredTensor:
    """Read qweight (K b / 32, N) packed along K, qzeros (K / g, N b / 32) along N, scales (K / g, N), g_idx (K,).

    The first version of the format stores zero points minus 1, `gptq_v2` as they are.
    """
    bits = integer(layer.config, "bits", (2, 3, 4, 8))
    offset = 0 if layer.config.get("checkpoint_format") == "gptq_v2" else 1
    qweight = layer.words("qweight")
    num_out, num_in = qweight.shape[1], qweight.shape[0] * 32 // bits
    group = layer.group("group_size", layer.config.get("group_size"), num_in)
    num_groups = num_in // group
    layer.need("scales", (num_groups, num_out), f" ('group_size' is {group})")
    layer.need("qzeros", (num_groups, num_out * bits // 32), f" ('group_size' is {group})")
    order = _order(layer, num_in, group)

    def zeros() -> Bytes:
        stored = int_words.unpack(layer.words("qzeros"), bits, num_out)
        return np.ascontiguousarray((stored + np.uint8(offset)).T & np.uint8((1 << bits) - 1))

    def read() -> Codes:
        words = np.ascontiguousarray(layer.words("qweight").T)
        scales = np.ascontiguousarray(layer.floats("scales").T)
        codes = int_words.unpack(words, bits, num_in)
        return Codes(codes, scales, zeros=zeros().astype(np.float32), groups=order)

    is_symmetric = bool((zeros() == 1 << (bits - 1)).all())
    shape, has_order = (num_out, num_in), order is not None
    return layer.weight(
        "qweight", shape, bits, read, is_symmetric=is_symmetric, has_order=has_order
    )


def _order(layer: PackedLayer, num_in: int, group: int) -> np.ndarray | None:
    """Return the group of each column, None if they are in order. Raises LoadError."""
    if not layer.has("g_idx"):
        return None
    layer.need("g_idx", (num_in,))
    order = layer.words("g_idx").reshape(-1)
    if (order == np.arange(num_in) // group).all():
        return None
    if order.min() < 0 or order.max() >= num_in // group:
        raise LoadError(f"tensor '{layer.name}.g_idx' names groups beyond {num_in // group}")
    return order


def _compressed(layer: PackedLayer) -> StoredTensor:
    """Read weight_packed (N, K b / 32) or int8 weight (N, K), weight_scale (N, K / g), zero points packed along N."""
    weights = _scheme(layer)
    bits = integer(weights, "num_bits", (2, 3, 4, 8))
    is_packed = layer.has("weight_packed")
    if is_packed:
        layer.need("weight_shape", (2,))
        num_out, num_in = (int(size) for size in _numbers(layer, "weight_shape"))
        layer.need("weight_packed", (num_out, -(-num_in * bits // 32)), " ('weight_shape')")
    else:
        num_out, num_in = layer.bytes("weight").shape
    size = weights.get("group_size") if weights.get("strategy") == "group" else None
    num_groups = num_in // layer.group("group_size", size, num_in)
    if layer.floats("weight_scale").size == 1 and weights.get("strategy") == "tensor":
        scales = partial(np.full, (num_out, 1), layer.floats("weight_scale").reshape(()))
    else:
        layer.need("weight_scale", (num_out, num_groups), f" ('group_size' is {short_repr(size)})")
        scales = partial(layer.floats, "weight_scale")
    middle = 1 << (bits - 1)
    if layer.has("weight_g_idx"):
        raise LoadError(f"'{layer.name}': columns in another order ('actorder') are not supported")
    is_symmetric = weights.get("symmetric", True) is True

    def read() -> Codes:
        if is_packed:
            codes = int_words.unpack(layer.words("weight_packed"), bits, num_in)
        else:
            codes = layer.bytes("weight") + np.uint8(middle)
        zeros = np.full((num_out, num_groups), middle, np.float32)
        if not is_symmetric:
            packed = np.ascontiguousarray(layer.words("weight_zero_point").T)
            zeros = np.ascontiguousarray(int_words.unpack(packed, bits, num_out).T, np.float32)
        return Codes(codes, scales(), zeros=zeros)

    if not is_symmetric:
        layer.need("weight_zero_point", (-(-num_out * bits // 32), num_groups))
    part = "weight_packed" if is_packed else "weight"
    return layer.weight(part, (num_out, num_in), bits, read, is_symmetric=is_symmetric)


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
    if weights.get("type", "int") != "int" or weights.get("strategy") not in (
        "group",
        "channel",
        "tensor",
    ):
        raise LoadError(
            f"'{layer.name}' is quantized as {short_repr(weights.get('type'))} "
            f"by {short_repr(weights.get('strategy'))}, "
            "which is not supported: int by group, channel or tensor is"
        )
    return weights


def _flatten(layer: PackedLayer, split: Split) -> StoredTensor:
    """Read weight (N, K) or weight_packed (N, K / 8), weight_scale (N,), input_step, input_pieces (K,), input_limit."""
    bits = 4 if layer.has("weight_packed") else 8
    part = "weight_packed" if bits == 4 else "weight"
    if bits == 4:
        num_out, num_in = layer.words(part).shape[0], 8 * layer.words(part).shape[1]
    else:
        num_out, num_in = layer.bytes(part).shape
    layer.need("weight_scale", (num_out,))
    layer.need("input_step", (num_in,))
    layer.need("input_pieces", (num_in,))
    layer.need("input_limit", (1,))
    for name in ("input_pieces", "input_limit"):
        layer.words(name)

    def read() -> Codes:
        if bits == 4:
            codes = (int_words.unpack(layer.words(part), 4, num_in) - np.uint8(8)).view(np.int8)
        else:
            codes = layer.bytes(part).view(np.int8)
        pieces = layer.words("input_pieces").reshape(-1)
        limit = int(layer.words("input_limit").reshape(-1)[0])
        flat = FlatRows(layer.floats("input_step"), pieces, limit, split)
        return Codes(codes, layer.floats("weight_scale")[:, None], flat=flat)

    format, data = FORMATS["q4_c" if bits == 4 else "q8_c"], layer.tensor(part).data
    return StoredTensor(f"{layer.name}.weight", (num_out, num_in), format, data, read)


_AWQ_VERSIONS = {"gemm": _awq_gemm, "gemv": _awq_gemv}
_FORMATS = ("pack-quantized", "int-quantized")


def _reader(config: Config) -> tuple[tuple[str, ...], Callable[[PackedLayer], StoredTensor]]:
    """Return the tensors that mark a quantized layer, and what reads it. Raises LoadError for an unknown method."""
    method = config.get("quant_method")
    if method == "awq":
        version = str(config.get("version", "gemm")).lower()
        if version not in _AWQ_VERSIONS:
            raise LoadError(unknown("version of AWQ", version, _AWQ_VERSIONS))
        integer(config, "bits", (4,))
        return ("qweight",), _AWQ_VERSIONS[version]
    if method == "gptq":
        return ("qweight",), _gptq
    if method == "compressed-tensors":
        format = str(config.get("format"))
        if format not in _FORMATS:
            raise LoadError(unknown("format of compressed-tensors", format, _FORMATS))
        return ("weight_packed", "weight_scale"), _compressed
    if method == "flatten":
        split = config.get("split")
        if split not in SPLITS:
            raise LoadError(unknown("split", str(split), SPLITS))
        return ("input_step", "input_pieces"), partial(
            _flatten, split="even" if split == "even" else "spill"
        )
    raise LoadError(
        unknown(
            "quantization method", str(method), ("awq", "gptq", "compressed-tensors", "flatten")
        )
    )


def quantization_config(config: Config, legacy: Config) -> Config | None:
    """Read the quantization from config.json, or else AutoAWQ's old quant_config.json. Raises LoadError."""
    given = config.get("quantization_config")
    if given is None and "w_bit" in legacy:
        named = {"bits": "w_bit", "group_size": "q_group_size", "version": "version"}
        return {"quant_method": "awq"} | {new: legacy.get(old) for new, old in named.items()}
    if given is not None and not isinstance(given, Mapping):
        raise LoadError(f"'quantization_config' is {short_repr(given)}, but must be an object")
    return given


def join(path: Path, config: Config, tensors: Tensors) -> dict[str, StoredTensor]:
    """Return a folder's tensors, one weight in place of each quantized layer's parts. Raises LoadError naming it."""
    try:
        marks, read = _reader(config)
        bases = [
            name.removesuffix(f".{mark}")
            for name in tensors
            for mark in marks
            if name.endswith(f".{mark}")
        ]
        if not bases:
            raise LoadError(
                f"the quantization config says {short_repr(config.get('quant_method'))}, but no tensor "
                f"is called '*.{marks[0]}'"
            )
        layers = [PackedLayer(base, config, tensors) for base in dict.fromkeys(bases)]
        weights = {f"{layer.name}.weight": read(layer) for layer in layers}
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error
    used = {name for layer in layers for name in layer.used}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | weights
