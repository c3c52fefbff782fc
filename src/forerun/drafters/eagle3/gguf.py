"""EAGLE-3 networks as GGUF files of the architecture `eagle3`, which llama.cpp runs with a target (`draft-eagle3`).

Tensors are those of one Llama layer whose q, k and v read twice the width; rows of q and k lie in llama.cpp's order of
pairs. `attn_norm_2` is `hidden_norm`, `enc.output_norm` the norm before `fc`. `d2t` (V',) int64 are the tokens of the
head themselves, not offsets. `target_layers` names layers by what goes into them. An embedding or head that is not in
the file is the target's; the tokenizer is a copy of the target's.

What llama.cpp has no place for is refused: norms of each state and of what is fed back (EAGLE-3.1), and of q and k.
Source: llama.cpp, src/models/eagle3.cpp and conversion/llama.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.drafters.eagle3.drafting import EagleWeights
from forerun.drafters.eagle3.files import check_same, shapes
from forerun.drafters.eagle3.network import NUM_LAYERS, Eagle3Config
from forerun.drafting.base import Target
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.networks.folder import GROUP, Folder
from forerun.model.arch.base.rope import rope_from_gguf
from forerun.model.arch.base.settings import Settings
from forerun.model.config import RopeConfig
from forerun.model.model import head_matrix
from forerun.weights.codes import FORMATS
from forerun.weights.gguf import GgufCheckpoint
from forerun.weights.gguf_blocks import quantize

ARCHITECTURE = "eagle3"
SUFFIX = ".gguf"
_NAMES = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "midlayer.self_attn.q_proj": "blk.0.attn_q",
    "midlayer.self_attn.k_proj": "blk.0.attn_k",
    "midlayer.self_attn.v_proj": "blk.0.attn_v",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    "midlayer.mlp.gate_proj": "blk.0.ffn_gate",
    "midlayer.mlp.up_proj": "blk.0.ffn_up",
    "midlayer.mlp.down_proj": "blk.0.ffn_down",
}
_ROTATED = ("midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight")
_D2T = "d2t"
_ROPE = "rope_freqs.weight"


def write(path: Path, weights: EagleWeights, target: Target, of_target: GgufCheckpoint) -> None:
    """Write a file for llama.cpp, matrices in Q8_0. Raises LoadError for a network that it cannot run, and OSError."""
    config, tensors = weights.config, dict(weights.tensors)
    _check_supported(config)
    if config.target_head and weights.tokens is not None:
        tensors["lm_head.weight"] = head_matrix(target.model, weights.tokens)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    _add_metadata(writer, config, target, of_target)
    for name, tensor in tensors.items():
        array = _paired(tensor, config.head_dim) if name in _ROTATED else tensor.float()
        values = np.ascontiguousarray(array.numpy())
        stored = f"{_NAMES[name.removesuffix('.weight')]}.weight"
        if values.ndim == 1:
            writer.add_tensor(stored, values)
        elif values.shape[1] % GROUP:
            writer.add_tensor(stored, values.astype(np.float16))
        else:
            blocks = quantize(values, FORMATS["q8_0"])
            writer.add_tensor(stored, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    if weights.tokens is not None:
        writer.add_tensor(_D2T, weights.tokens.numpy())
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_one(path: Path) -> bool:
    """Say whether the name is that of such a file."""
    return path.suffix == SUFFIX


def check_file(path: Path) -> None:
    """Raise LoadError if that is no such file."""
    _open(path)


def read(path: Path, target: Target) -> EagleWeights:
    """Read a file for a target. Raises LoadError naming what is wrong."""
    file = _open(path)
    ours = {f"{theirs}.weight": f"{name}.weight" for name, theirs in _NAMES.items()}
    tensors = dict[str, Tensor]()
    tokens = None
    for name in sorted(file.names()):
        stored = file.tensor(name)
        if name == _D2T:
            ids = torch.from_numpy(
                np.ascontiguousarray(stored.data).view(np.int64).reshape(-1).copy()
            )
            folder = Folder(path, {}, {_D2T: ids})
            tokens = network_folder.token_ids(folder, _D2T, target.model.config.vocab_size)
        elif name in ours:
            tensors[ours[name]] = stored.dequantize()
        elif name != _ROPE:
            raise LoadError(f"{path}: tensor '{name}' is none of such a network")
    config = _config(file, tensors, tokens, target)
    if (factor := _rope(file, config.head_dim).attention_factor) != 1:
        tensors |= {name: factor * tensors[name] for name in _ROTATED}
    for name in _ROTATED:
        if name in tensors:
            tensors[name] = _unpaired(tensors[name], config.head_dim)
    Folder(path, {}, tensors).need(shapes(config))
    return EagleWeights(config, tensors, tokens)


def _open(path: Path) -> GgufCheckpoint:
    file = GgufCheckpoint(path)
    if file.architecture != ARCHITECTURE:
        raise LoadError(f"{path} is of the architecture {file.architecture!r}, not {ARCHITECTURE}")
    return file


def _check_supported(config: Eagle3Config) -> None:
    has = {
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "norms of q and k": config.qk_norm,
        "scaled positions here": config.rope_factors is not None,
    }
    if found := [name for name, value in has.items() if value]:
        raise LoadError(
            f"llama.cpp has no {' and no '.join(found)}: train with forerun train drafter --kind eagle3 --gguf"
        )


def _add_metadata(
    writer: gguf.GGUFWriter, config: Eagle3Config, target: Target, of_target: GgufCheckpoint
) -> None:
    """Write what llama.cpp asks for, and the target's tokenizer."""
    writer.add_context_length(target.max_len)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_array(f"{ARCHITECTURE}.target_layers", [layer + 1 for layer in config.layers])
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", config.state_width)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_residual", config.norm_before_residual)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_fc", config.norm_before_fc)
    for key, value in of_target.metadata.items():
        if key.startswith("tokenizer."):
            kind = gguf.GGUFValueType.get_type(value)
            is_id = kind is gguf.GGUFValueType.INT32
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if is_id else kind)


def _config(
    file: GgufCheckpoint, tensors: Mapping[str, Tensor], tokens: Tensor | None, target: Target
) -> Eagle3Config:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    shape, path = target.model.config, file.path
    fields = {k.removeprefix(f"{ARCHITECTURE}."): v for k, v in file.config.items()}
    folder = Folder(path, fields, tensors)
    layers = fields.get("target_layers", fields.get("extract_layers"))
    ids = [i - 1 for i in layers if type(i) is int] if isinstance(layers, list) else []
    if len(ids) != NUM_LAYERS or not all(0 <= i < shape.num_layers for i in ids):
        raise LoadError(
            f"{path}: three layers of 1 to {shape.num_layers} must be read, got {layers!r}"
        )
    width, heads = folder.number("embedding_length"), folder.number("attention.head_count")
    head_dim = folder.number("attention.key_length", default=max(1, width // heads))
    rope = _rope(file, head_dim)
    config = Eagle3Config(
        vocab_size=shape.vocab_size,
        draft_vocab_size=shape.vocab_size if tokens is None else len(tokens),
        hidden_size=width,
        intermediate_size=folder.number("feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=folder.number("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        rope_theta=rope.theta,
        rope_factors=rope.factors,
        rms_norm_eps=folder.real("attention.layer_norm_rms_epsilon", 1e-5),
        layers=tuple(ids),
        target_hidden_size=folder.number("target_hidden_size"),
        fc_norm=False,
        norm_before_fc=folder.flag("norm_before_fc"),
        norm_output=False,
        norm_before_residual=folder.flag("norm_before_residual"),
        target_embedding="embed_tokens.weight" not in tensors,
        target_head="lm_head.weight" not in tensors,
    )
    compared = [
        (folder.number("vocab_size", default=shape.vocab_size), shape.vocab_size, "a vocabulary of")
    ]
    compared += [(config.state_width, shape.hidden_size, "states of width")]
    if config.target_embedding or config.target_head:
        compared += [(config.hidden_size, shape.hidden_size, "embeddings of width")]
    check_same(path, compared)
    return config


def _rope(file: GgufCheckpoint, head_dim: int) -> RopeConfig:
    """Read the rotary settings. Raises LoadError."""
    found = rope_from_gguf(Settings(file), head_dim, {})
    if found.rotary_dim != head_dim:
        raise LoadError(
            f"{file.path}: only whole heads are rotated, not {found.rotary_dim} of {head_dim} features"
        )
    return found


def _paired(weight: Tensor, head_dim: int) -> Tensor:
    """Order rows as llama.cpp rotates them: first and second half of a head by turns."""
    parts = weight.float().reshape(-1, 2, head_dim // 2, weight.shape[1])
    return parts.transpose(1, 2).reshape(weight.shape).contiguous()


def _unpaired(weight: Tensor, head_dim: int) -> Tensor:
    parts = weight.reshape(-1, head_dim // 2, 2, weight.shape[1])
    return parts.transpose(1, 2).reshape(weight.shape).contiguous()
