"""Networks that draft, as other engines read them: what is the target's becomes rows of their own, in fp16.

`mlp_speculator` as IBM's (fms-extras, vLLM), its LSTM as Snowflake's `sum_lstm`, EAGLE-3 as SafeAILab's (vLLM, SGLang)
or as llama.cpp's GGUF, Medusa as FasterDecoding's. What those have no place for is left out: the calibration, the
target's name. All heads but EAGLE-3's have all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.drafters.eagle3 import files as eagle_files
from forerun.drafters.eagle3 import gguf as eagle_gguf
from forerun.drafters.medusa import files as medusa_files
from forerun.drafters.mlp_speculator import files as recurrent_files
from forerun.drafters.mlp_speculator.files import GATE_TABLES, Shape, target_rows
from forerun.drafting.base import Target
from forerun.drafting.networks import folder as network_folder
from forerun.weights.base import Checkpoint
from forerun.weights.gguf import GgufCheckpoint

_TOP_K = (4, 3, 2)
"""Tokens of each head that IBM's engine tries; the last for all later ones."""
_NOT_THEIRS = ("layers", "qk_norm", "target_embedding", "target_head")


def export(folder: Path, out: Path, target: Target) -> None:
    """Write a folder for other engines. Raises LoadError for one that does not fit the target, and OSError."""
    kind = network_folder.config_of(folder).get("model_type")
    if kind in recurrent_files.MODEL_TYPES:
        config, tensors = _recurrent(folder, target)
    elif kind == medusa_files.MODEL_TYPE:
        config, tensors = _medusa(folder, target)
    else:
        config, tensors = _eagle(folder, target)
    halves = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    network_folder.write(out, config | {"torch_dtype": "float16"}, halves)


def export_gguf(folder: Path, out: Path, target: Target, of_target: Checkpoint) -> None:
    """Write an EAGLE-3 network as llama.cpp reads it.

    Raises LoadError for another network, or one that it cannot run, or if the target is no GGUF file; and OSError.
    """
    if not isinstance(of_target, GgufCheckpoint):
        raise LoadError(f"{of_target.path} is no GGUF file, whose tokenizer would be copied")
    eagle_files.check_folder(str(folder))
    eagle_gguf.write(out, eagle_files.read(str(folder), target), target, of_target)


def _recurrent(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Tensor]]:
    read = network_folder.read(folder, target)
    shape, found, tokens = recurrent_files.stored(read, target)
    prefix = "" if shape.is_lstm else "speculator."
    names = {ours: theirs for ours, (theirs, _) in shape.tensors(shape.vocab_size).items()}
    own = {name: found[name] for name in found if name not in ("map", "head_map")}
    tensors = {prefix + names[name]: tensor for name, tensor in own.items()}
    if (map := found.get("map")) is not None:
        table = target.model.embed(torch.arange(shape.vocab_size)).float() @ map.T
        parts = table.chunk(table.shape[1] // shape.inner_size, 1)
        tables = [f"{n}.0" for n in GATE_TABLES[: len(parts)]] if shape.is_lstm else ["emb.0"]
        tensors |= {f"{prefix}{n}.weight": t for n, t in zip(tables, parts, strict=True)}
    if (map := found.get("head_map")) is not None:
        tensors[f"{prefix}head.0.weight"] = target_rows(target.model, None) @ map
    elif tokens is not None:
        for name in [name for name in tensors if ".head." in f".{name}"]:
            rows = torch.zeros(shape.vocab_size, shape.inner_size)
            tensors[name] = rows.index_copy(0, tokens, tensors[name])
    return _recurrent_config(shape, read.flag("scale_input")), tensors


def _recurrent_config(shape: Shape, scales_input: bool) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": "mlp_speculator",
        "vocab_size": shape.vocab_size,
        "inner_dim": shape.inner_size,
        "n_predict": shape.num_predict,
        "tie_weights": shape.is_tied,
        "scale_input": scales_input,
    }
    if shape.is_lstm:
        return config | {
            "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"],
            "method": "sum_lstm",
            "input_hidden_dim": shape.hidden_size,
            "emb_dim": shape.inner_size,
            "proj_dim": shape.inner_size,
            "num_lookahead_tokens": shape.num_predict,
            "tie_lstm_embs": shape.has_one_table,
        }
    top_k = [_TOP_K[min(i, len(_TOP_K) - 1)] for i in range(shape.num_predict)]
    return config | {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": shape.hidden_size,
        "n_candidates": 5,
        "top_k_tokens_per_head": top_k,
    }


def _medusa(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Tensor]]:
    weights = medusa_files.read(str(folder), target)
    tensors = dict[str, Tensor]()
    shape = target.model.config
    for k in range(weights.num_heads):
        for j in range(weights.num_layers):
            tensors[f"{k}.{j}.linear.weight"] = weights.tensors[f"block.{k}.{j}"]
            tensors[f"{k}.{j}.linear.bias"] = weights.tensors[f"bias.{k}.{j}"]
        rows = weights.tensors.get(f"head.{k}")
        if rows is None:
            rows = target_rows(target.model, None)
        elif weights.tokens is not None:
            own = torch.zeros(shape.vocab_size, shape.hidden_size)
            rows = own.index_copy(0, weights.tokens, rows)
        tensors[f"{k}.{weights.num_layers}.weight"] = rows
    return {
        "model_type": medusa_files.MODEL_TYPE,
        "architectures": ["MedusaModel"],
        "medusa_num_heads": weights.num_heads,
        "medusa_num_layers": weights.num_layers,
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
    }, tensors


def _eagle(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Tensor]]:
    weights = eagle_files.read(str(folder), target)
    config, tensors = asdict(weights.config), dict(weights.tensors)
    tokens = weights.tokens
    if tokens is None:
        tokens = torch.arange(weights.config.vocab_size)
    if weights.config.target_head:
        tensors["lm_head.weight"] = target_rows(target.model, tokens)
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.zeros(weights.config.vocab_size, dtype=torch.bool)
    tensors["t2d"][tokens] = True
    inputs = [layer + 1 for layer in weights.config.layers]
    kept: Mapping[str, object] = {k: v for k, v in config.items() if k not in _NOT_THEIRS}
    return {
        **kept,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "target_hidden_size": weights.config.state_width,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": inputs},
    }, tensors
