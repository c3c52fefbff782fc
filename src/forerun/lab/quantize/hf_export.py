"""A model's canonical weights under the names of its Hugging Face folder, and that folder's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.errors import LoadError
from forerun.model.arch.base.mapping import Arch
from forerun.model.config import ModelConfig
from forerun.weights.codes import Codes

if TYPE_CHECKING:
    from forerun.weights.checkpoint import Checkpoint

Matrix = np.ndarray | Codes

_FROM_GGUF = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def named(
    arch: Arch, config: ModelConfig, layer: int | None, weights: Mapping[str, Matrix]
) -> dict[str, Matrix]:
    """Weights and biases (`q`, `q.bias`) of a layer, or those outside all, by tensor; fused ones are joined.

    A plain array's name ends in `.weight` or `.bias`, that of codes is the layer's alone.
    """
    found: dict[str, list[tuple[int, Matrix]]] = {}
    for name, matrix in weights.items():
        short = name.removesuffix(".bias")
        source = arch.source(short, config, "hf")
        tensor = source.name.format(i=layer)
        if isinstance(matrix, np.ndarray):
            tensor += ".weight" if name == short else ".bias"
        start = 0 if source.part is None else source.part.start
        found.setdefault(tensor, []).append((start, matrix))
    return {
        tensor: _joined([matrix for _, matrix in sorted(parts, key=lambda part: part[0])])
        for tensor, parts in found.items()
    }


def _joined(parts: list[Matrix]) -> Matrix:
    if len(parts) == 1:
        return parts[0]
    codes = [part for part in parts if isinstance(part, Codes)]
    if not codes:
        return np.concatenate(parts)  # type: ignore[arg-type]  # none is coded
    zeros = [part.zeros for part in codes if part.zeros is not None]
    return replace(  # flattened ones read the same inputs
        codes[0],
        codes=np.concatenate([part.codes for part in codes]),
        scales=np.concatenate([part.scales for part in codes]),
        zeros=np.concatenate(zeros) if zeros else None,
    )


def config_json(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, object]:
    """What config.json says of the model in fp16. Raises LoadError for a GGUF of a family that we cannot describe."""
    if checkpoint.kind == "hf":
        given = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
        return given | {"torch_dtype": "float16"}
    rope = config.rope
    if config.family not in _FROM_GGUF or rope is None or rope.rotary_dim != config.head_dim:
        raise LoadError(
            f"a GGUF of family {config.family} cannot be written as a Hugging Face folder "
            f"(those that can: {', '.join(_FROM_GGUF)}): give the model's Hugging Face folder"
        )
    if rope.factors is not None or config.sliding_window is not None:
        raise LoadError(
            "a GGUF with rope scaling or a sliding window cannot be written as a Hugging Face "
            "folder: give the model's Hugging Face folder"
        )
    return {
        "architectures": [_FROM_GGUF[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "rope_theta": rope.theta,
        "tie_word_embeddings": config.tied_head,
        "torch_dtype": "float16",
    }
