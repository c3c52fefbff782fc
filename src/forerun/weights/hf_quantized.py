"""Hugging Face folders whose weights are quantized: AWQ, GPTQ, and our own of FlattenQuant; others in `hf_*.py`.

The tensors of each linear layer become one `<layer>.weight`, so that nothing above this file sees the difference.
Layouts are those of AutoAWQ (modules/linear) and AutoGPTQ (qlinear).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from forerun.core.errors import LoadError, short_repr, unknown
from forerun.weights import int_words
from forerun.weights.codes import FORMATS, Bytes, Codes
from forerun.weights.flat import FlatRows
from forerun.weights.hf_compressed import COMPRESSED_FORMATS, compressed, integers
from forerun.weights.hf_floats import float8, modelopt, mxfp4
from forerun.weights.hf_layer import Config, PackedLayer, Tensors, integer
from forerun.weights.hf_mlx import is_mlx, mlx
from forerun.weights.stored import StoredTensor


def _awq_gemm(layer: PackedLayer) -> StoredTensor:
    """Read qweight (K, N / 8) and qzeros (K / g, N / 8) in AWQ's order along N, scales (K / g, N)."""
    integer(layer.config, "bits", (4,))
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
    integer(layer.config, "bits", (4,))
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
    order = layer.order("g_idx", num_in, group)

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


def _flatten(layer: PackedLayer) -> StoredTensor:
    """Read weight (N, K) or weight_packed (N, K / 8), weight_scale (N,), input_step, input_pieces (K,), input_limit.

    Of a layer without pieces and limit rows have scales of their own, and `input_hadamard` (1,) says whether
    Hadamard's matrix transforms them. A layer with none of `input_*` is not flattened: int8 weight (N, K),
    weight_scale (N, K / g).
    """
    is_split = any(map(layer.has, ("input_pieces", "input_limit")))
    if not is_split and not any(map(layer.has, ("input_step", "weight_packed"))):
        group = layer.config.get("group_size")
        return integers(layer, {"num_bits": 8, "strategy": "group", "group_size": group})
    bits = 4 if layer.has("weight_packed") else 8
    part = "weight_packed" if bits == 4 else "weight"
    if bits == 4:
        num_out, num_in = layer.words(part).shape[0], 8 * layer.words(part).shape[1]
    else:
        num_out, num_in = layer.bytes(part).shape
    layer.need("weight_scale", (num_out,))
    layer.need("input_step", (num_in,))
    if is_split:
        layer.need("input_pieces", (num_in,))
        layer.need("input_limit", (1,))
        for name in ("input_pieces", "input_limit"):
            layer.words(name)
    uses_hadamard = layer.has("input_hadamard")
    if uses_hadamard:
        layer.need("input_hadamard", (1,))
        layer.words("input_hadamard")

    def read() -> Codes:
        if bits == 4:
            codes = (int_words.unpack(layer.words(part), 4, num_in) - np.uint8(8)).view(np.int8)
        else:
            codes = layer.bytes(part).view(np.int8)
        turned = uses_hadamard and bool(layer.words("input_hadamard").any())
        flat = FlatRows.by_row(layer.floats("input_step"), uses_hadamard=turned)
        if is_split:
            pieces = layer.words("input_pieces").reshape(-1)
            limit = int(layer.words("input_limit").reshape(-1)[0])
            flat = FlatRows(flat.steps, pieces, limit, turned)
        return Codes(codes, layer.floats("weight_scale")[:, None], flat=flat)

    format, data = FORMATS["q4_c" if bits == 4 else "q8_c"], layer.tensor(part).data
    return StoredTensor(f"{layer.name}.weight", (num_out, num_in), format, data, read)


_AWQ_VERSIONS = {"gemm": _awq_gemm, "gemv": _awq_gemv}
_AUTOROUND = {
    **dict.fromkeys(("auto_gptq", "gptq"), ("gptq", "gptq")),
    **dict.fromkeys(("auto_round", "gptqmodel", "exllamav2"), ("gptq", "gptq_v2")),
    **dict.fromkeys(("auto_awq", "awq"), ("awq", "")),
}
"""Whose layout a packing format of AutoRound is, and which version of it."""
_MODELOPT = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION")
_METHODS = (
    "awq",
    "gptq",
    "auto-round",
    "compressed-tensors",
    "modelopt",
    "fp8",
    "mxfp4",
    "flatten",
)
_ROUNDED = tuple(
    f".{part}" for part in ("input_scale", "input_zero_point", "input_global_scale", "output_scale")
) + tuple(f".{part}_{kind}" for part in "qkv" for kind in ("scale", "zero_point"))
"""How tensors end that say how activations, keys or values are rounded: here that is done as for any other file."""


def _plain(config: Config) -> Config:
    """Return AutoRound's config as that of whose layout it has, and mlx-lm's with a name. Raises LoadError."""
    if is_mlx(config):
        return {"quant_method": "mlx", **config}
    if config.get("quant_method") not in ("auto-round", "autoround"):
        return config
    layout = str(config.get("packing_format")).removeprefix("auto_round:")
    if layout not in _AUTOROUND:
        raise LoadError(unknown("packing_format of AutoRound", layout, _AUTOROUND))
    method, version = _AUTOROUND[layout]
    return {**config, "quant_method": method, "checkpoint_format": version}


def _of_layer(config: Config, name: str) -> Config:
    """Return the config as it holds for a layer: AutoRound's `extra_config`, GPTQModel's `dynamic`, MLX's own.

    Raises LoadError for a pattern that is none.
    """
    if config.get("quant_method") == "mlx":
        own = config.get(name)
        return {**config, **own} if isinstance(own, Mapping) else config
    for key, match in (("extra_config", re.fullmatch), ("dynamic", re.match)):
        changes = config.get(key)
        if not isinstance(changes, Mapping):
            continue
        meant = [name] if name in changes else []
        try:
            meant += [each for each in changes if match(each.removeprefix("+:"), name)]
        except re.error as error:
            raise LoadError(f"'{key}' has a pattern that is none: {error}") from error
        if meant and isinstance(changes[meant[0]], Mapping):
            return {**config, **changes[meant[0]]}
    return config


def _reader(config: Config) -> tuple[tuple[str, ...], Callable[[PackedLayer], StoredTensor]]:
    """Return how tensors that mark a quantized layer end, and what reads it. Raises LoadError for an unknown method."""
    method = config.get("quant_method")
    if method == "awq":
        version = str(config.get("version", "gemm")).lower()
        if version not in _AWQ_VERSIONS:
            raise LoadError(unknown("version of AWQ", version, _AWQ_VERSIONS))
        return (".qweight",), _AWQ_VERSIONS[version]
    if method == "modelopt":
        if config.get("quant_algo") not in _MODELOPT:
            raise LoadError(
                unknown("quant_algo of ModelOpt", str(config.get("quant_algo")), _MODELOPT)
            )
        return (".weight_scale",), modelopt
    if method == "compressed-tensors":
        format = str(config.get("format"))
        if format not in COMPRESSED_FORMATS:
            raise LoadError(unknown("format of compressed-tensors", format, COMPRESSED_FORMATS))
        return (".weight_packed", ".weight_scale"), compressed
    if method == "flatten":
        if config.get("split") != "spill":
            raise LoadError(unknown("split", str(config.get("split")), ("spill",)))
        return (".weight_scale", ".input_step", ".input_pieces"), _flatten
    if method not in _READERS:
        raise LoadError(unknown("quantization method", str(method), _METHODS))
    return _READERS[method]


_READERS: Mapping[object, tuple[tuple[str, ...], Callable[[PackedLayer], StoredTensor]]] = {
    "gptq": ((".qweight",), _gptq),
    "fp8": ((".weight_scale_inv", ".weight_scale"), float8),
    "mxfp4": (("_blocks",), mxfp4),
    "mlx": ((".scales",), mlx),
}


def quantization_config(
    config: Config, awq: Config, gptq: Config, modelopt: Config
) -> Config | None:
    """Read the quantization from config.json, or from a file of AutoAWQ, AutoGPTQ or ModelOpt. Raises LoadError."""
    given, other = config.get("quantization_config"), config.get("quantization")
    if given is None and isinstance(other, Mapping) and is_mlx(other):
        return other
    if given is None and "w_bit" in awq:
        named = {"bits": "w_bit", "group_size": "q_group_size", "version": "version"}
        return {"quant_method": "awq"} | {new: awq.get(old) for new, old in named.items()}
    if given is None and "bits" in gptq:
        return {"quant_method": "gptq", **gptq}
    nested = modelopt.get("quantization")
    if given is None and isinstance(nested, Mapping):
        return {"quant_method": "modelopt", **nested}
    if given is not None and not isinstance(given, Mapping):
        raise LoadError(f"'quantization_config' is {short_repr(given)}, but must be an object")
    return given


def join(path: Path, config: Config, tensors: Tensors) -> dict[str, StoredTensor]:
    """Return a folder's tensors, one weight in place of each quantized layer's parts. Raises LoadError naming it."""
    try:
        config = _plain(config)
        marks, read = _reader(config)
        bases = [
            name.removesuffix(mark) for name in tensors for mark in marks if name.endswith(mark)
        ]
        if not bases:
            raise LoadError(
                f"the quantization config says {short_repr(config.get('quant_method'))}, but no tensor "
                f"is called '*{marks[0]}'"
            )
        separator = marks[0][0]
        layers = [
            PackedLayer(base, _of_layer(config, base), tensors, separator)
            for base in dict.fromkeys(bases)
        ]
        weights = {f"{layer.name}.weight": read(layer) for layer in layers}
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error
    used = {name for layer in layers for name in layer.used}
    left = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in used and not name.endswith(_ROUNDED)
    }
    return left | weights
