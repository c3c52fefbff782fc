"""Write an EAGLE-3 network as a GGUF file that llama.cpp runs; `drafters/eagle3/files.py` has the layout.

What llama.cpp has no place for is refused: norms of each state and of what is fed back (EAGLE-3.1), and of q and k.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import GROUP
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafters.eagle3.files import EagleWeights
from forerun.weights.codes import FORMATS
from forerun.weights.gguf import GgufCheckpoint
from forerun.weights.gguf_blocks import quantize

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURE = "eagle3"


def write(path: Path, weights: EagleWeights, target: Target, of_target: GgufCheckpoint) -> None:
    """Write a file for llama.cpp, matrices in Q8_0. Raises LoadError for a network that it cannot run, and OSError."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise LoadError(
            "GGUF files are written by the package gguf: it comes with forerun's extra lab"
        ) from error
    config = weights.config
    _check_supported(config)
    tensors = {name: each.dequantize() for name, each in weights.tensors.items()}
    if config.target_head and weights.tokens is not None:
        tensors["head.0"] = target.model.head_weights(weights.tokens)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    _add_metadata(writer, config, target, of_target)
    for name, tensor in tensors.items():
        array = _paired(tensor, config.head_dim) if name in ("q", "k") else tensor
        values = np.ascontiguousarray(array, np.float32)
        stored = config.file_name(name, "gguf")
        if values.ndim == 1:
            writer.add_tensor(stored, values)
        elif values.shape[1] % GROUP:
            writer.add_tensor(stored, values.astype(np.float16))
        else:
            blocks = quantize(values, FORMATS["q8_0"])
            writer.add_tensor(stored, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    if weights.tokens is not None:
        writer.add_tensor("d2t", weights.tokens)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_supported(config: Eagle3Config) -> None:
    has = {
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "norms of q and k": config.qk_norm,
        "scaled positions here": config.rope_factors is not None,
    }
    if unsupported := [name for name, value in has.items() if value]:
        raise LoadError(
            f"llama.cpp has no {' and no '.join(unsupported)}: train with forerun train drafter --kind eagle3 --gguf"
        )


def _add_metadata(
    writer: GGUFWriter, config: Eagle3Config, target: Target, of_target: GgufCheckpoint
) -> None:
    """Write what llama.cpp asks for, and the target's tokenizer."""
    from gguf import GGUFValueType

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
            kind = GGUFValueType.get_type(value)
            is_id = kind is GGUFValueType.INT32
            writer.add_key_value(key, value, GGUFValueType.UINT32 if is_id else kind)


def _paired(weight: Floats, head_dim: int) -> Floats:
    """Order rows as llama.cpp rotates them: first and second half of a head by turns."""
    return (
        weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    )
