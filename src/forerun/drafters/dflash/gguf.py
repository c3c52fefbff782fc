"""Block drafters as GGUF files of the architecture `dflash`, which llama.cpp runs (`draft-dflash`, `draft-dspark`).

Layers are those of Qwen 3, rows of q and k as they are there. `enc.output_norm` is the norm behind `fc`;
`target_layers` names layers by what goes into them; the mask is the tokenizer's. `d2t` (V',) int64 are the tokens of
the head themselves. An embedding or a head is a copy of the target's.

Source: llama.cpp, src/models/dflash.cpp and common/speculative.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import layered
from forerun.drafters.base.networks.folder import Folder
from forerun.drafters.dflash.config import CONFIDENCE, MARKOV_IN, MARKOV_OUT
from forerun.drafters.dflash.drafting import BlockWeights
from forerun.drafters.dflash.files import block_config, weights_of
from forerun.weights.gguf import GgufCheckpoint
from forerun.weights.stored import StoredTensor

ARCHITECTURE = "dflash"
_NAMES = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "output_norm": "norm",
    "markov_w1": MARKOV_IN,
    "markov_w2": MARKOV_OUT,
    "conf_proj": CONFIDENCE,
}
_OF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_COPIES = ("token_embd.weight", "output.weight", "rope_freqs.weight")
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "block_size": "block_size",
    "sample_from_anchor": "sample_from_anchor",
    "causal": "attention.causal",
}
_MASK = "tokenizer.ggml.mask_token_id"
_USUAL_BLOCK = 16


def check_kind(model: str) -> None:
    """Raise LoadError if that is no such file."""
    layered.open_gguf(model, ARCHITECTURE)


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a file of another target, by its header alone."""
    file = layered.open_gguf(model, ARCHITECTURE)
    folder = _folder(file, _stored(file), target)
    rope = layered.gguf_rope(file, folder.number("head_dim"))
    block_config(folder, target.model.config, rope=rope)


def read(model: str, target: Target) -> BlockWeights:
    """Read a file for a target; its tensors when they are asked for. Raises LoadError naming what is wrong."""
    file = layered.open_gguf(model, ARCHITECTURE)
    stored = _stored(file)
    folder = _folder(file, stored, target)
    rope = layered.gguf_rope(file, folder.number("head_dim"))
    tokens = layered.gguf_tokens(file, target.model.config.vocab_size)
    return weights_of(folder, stored, tokens, target, rope)


def _stored(file: GgufCheckpoint) -> dict[str, StoredTensor]:
    """Return the tensors by our names. Raises LoadError for one of another kind of network."""
    found = dict[str, StoredTensor]()
    for name in file.names():
        if name in (*_COPIES, layered.GGUF_TOKENS):
            continue
        base, _, last = name.rpartition(".")
        block, _, rest = base.partition(".")[2].partition(".")
        ours = _NAMES.get(base)
        if name.startswith("blk.") and rest in _OF_LAYERS:
            ours = f"layers.{block}.{_OF_LAYERS[rest]}"
        if ours is None:
            raise LoadError(f"{file.path}: tensor '{name}' is none of a DFlash or DSpark network")
        tensor = file.tensor(name)
        if ours == CONFIDENCE and last == "weight":  # a vector there
            tensor = replace(tensor, shape=(1, tensor.shape[-1]))
        found[f"{ours}.{last}"] = tensor
    return found


def _folder(file: GgufCheckpoint, stored: dict[str, StoredTensor], target: Target) -> Folder:
    """Return the header as the configuration of a folder. Raises LoadError."""
    fields = {k.removeprefix(f"{ARCHITECTURE}."): v for k, v in file.config.items()}
    config: dict[str, Any] = {ours: fields.get(key) for ours, key in _KEYS.items()}
    layers = fields.get("target_layers")
    config["target_layer_ids"] = layers
    if isinstance(layers, list) and all(type(i) is int for i in layers):
        config["target_layer_ids"] = [i - 1 for i in layers]
    config["vocab_size"] = target.model.config.vocab_size
    config["mask_token_id"] = file.metadata.get(_MASK)
    config["block_size"] = config["block_size"] or _USUAL_BLOCK
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = [
            "sliding_attention" if is_local else "full_attention" for is_local in pattern
        ]
    if (markov := stored.get(f"{MARKOV_IN}.weight")) is not None:
        config["markov_rank"] = markov.shape[-1]
    folder = Folder(file.path, {k: v for k, v in config.items() if v is not None}, {})
    heads, width = folder.number("num_attention_heads"), folder.number("hidden_size")
    head_dim = folder.number("head_dim", default=max(1, width // heads))
    return Folder(
        file.path, {"num_key_value_heads": heads, **folder.config, "head_dim": head_dim}, {}
    )
