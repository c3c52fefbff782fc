"""EAGLE-3 networks as GGUF files of the architecture `eagle3`, which llama.cpp runs with a target (`draft-eagle3`).

Tensors are those of one Llama layer whose q, k and v read twice the width; rows of q and k lie in llama.cpp's order of
pairs. `attn_norm_2` is `hidden_norm`, `enc.output_norm` the norm before `fc`. `d2t` (V',) int64 are the tokens of the
head themselves, not offsets. `target_layers` names layers by what goes into them. An embedding or head that is not in
the file is the target's; the tokenizer is a copy of the target's.

Source: llama.cpp, src/models/eagle3.cpp and conversion/llama.py.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import layered
from forerun.drafters.base.networks.folder import Folder
from forerun.drafters.eagle3.config import NUM_LAYERS, Eagle3Config
from forerun.drafters.eagle3.drafting import EagleWeights
from forerun.drafters.eagle3.files import check_target
from forerun.weights.gguf import GgufCheckpoint

ARCHITECTURE = "eagle3"
NAMES = {
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
ROTATED = ("midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight")
_ROPE = "rope_freqs.weight"


def check_kind(model: str) -> None:
    """Raise LoadError if that is no such file."""
    layered.open_gguf(model, ARCHITECTURE)


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a file of another target, by its header alone."""
    file, ours = layered.open_gguf(model, ARCHITECTURE), _ours()
    _config(file, {ours.get(name, name) for name in file.names()}, None, target)


def read(model: str, target: Target) -> EagleWeights:
    """Read a file for a target. Raises LoadError naming what is wrong."""
    file, ours = layered.open_gguf(model, ARCHITECTURE), _ours()
    tokens = layered.gguf_tokens(file, target.model.config.vocab_size)
    tensors = dict[str, Floats]()
    for name in sorted(file.names() - {layered.GGUF_TOKENS, _ROPE}):
        if name not in ours:
            raise LoadError(f"{file.path}: tensor '{name}' is none of such a network")
        tensors[ours[name]] = file.tensor(name).dequantize()
    config = _config(file, tensors.keys(), tokens, target)
    Folder(file.path, {}, tensors).need(config.shapes())
    if (factor := layered.gguf_rope(file, config.head_dim).attention_factor) != 1:
        tensors |= {name: np.float32(factor) * tensors[name] for name in ROTATED}
    tensors |= {name: _unpaired(tensors[name], config.head_dim) for name in ROTATED}
    return EagleWeights(config, tensors, tokens)


def _ours() -> dict[str, str]:
    return {f"{gguf}.weight": f"{name}.weight" for name, gguf in NAMES.items()}


def _config(
    file: GgufCheckpoint, names: Set[str], tokens: Ids | None, target: Target
) -> Eagle3Config:
    """Read the configuration, with our names of the tensors, and compare it with the target's. Raises LoadError."""
    shape, path = target.model.config, file.path
    fields = {k.removeprefix(f"{ARCHITECTURE}."): v for k, v in file.config.items()}
    folder = Folder(path, fields, {})
    layers = fields.get("target_layers", fields.get("extract_layers"))
    ids = [i - 1 for i in layers if type(i) is int] if isinstance(layers, list) else []
    if len(ids) != NUM_LAYERS or not all(0 <= i < shape.num_layers for i in ids):
        raise LoadError(
            f"{path}: three layers of 1 to {shape.num_layers} must be read, got {layers!r}"
        )
    width, heads = folder.number("embedding_length"), folder.number("attention.head_count")
    head_dim = folder.number("attention.key_length", default=max(1, width // heads))
    rope = layered.gguf_rope(file, head_dim)
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
        target_embedding="embed_tokens.weight" not in names,
        target_head="lm_head.weight" not in names,
    )
    check_target(folder, config, folder.number("vocab_size", default=shape.vocab_size), shape)
    return config


def _unpaired(weight: Floats, head_dim: int) -> Floats:
    return (
        weight.reshape(-1, head_dim // 2, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    )
