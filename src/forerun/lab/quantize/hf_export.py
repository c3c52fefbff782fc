"""A model as a Hugging Face folder: names of its tensors, config.json, the tokenizer's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import decoders

from forerun.core.errors import ConfigError, LoadError
from forerun.model.arch.base.mapping import Arch
from forerun.model.arch.base.source import TensorSource
from forerun.model.config import ModelConfig
from forerun.text.tokenizer import Encoding, Tokenizer
from forerun.weights.checkpoint import Checkpoint
from forerun.weights.codes import Codes

Matrix = np.ndarray | Codes

_NOT_COPIED = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx")
_NOT_KEPT = (
    *("config.json", "quant_config.json", "quantize_config.json", "hf_quant_config.json"),
    *("model.safetensors.index.json", "adapter_config.json"),
)
"""Files that say how the weights lie, which is another way now, and adapters, which were made for others."""
_TEMPLATES = "additional_chat_templates"

_FROM_GGUF = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def named(
    arch: Arch,
    config: ModelConfig,
    layer: int | None,
    weights: Mapping[str, Matrix],
    names: Container[str] = (),
) -> dict[str, Matrix]:
    """Name the weights and biases (`q`, `q.bias`) of a layer, or those outside all, as tensors, with rows as they have.

    Fused ones are joined, halves of heads interleaved where the family does so, experts apart. Of several names
    that of `names` is taken. A plain array's name ends in `.weight` or `.bias`, that of codes is the layer's alone.
    """
    by_tensor: dict[str, list[tuple[np.ndarray, Matrix]]] = {}
    for name, matrix in weights.items():
        short = name.removesuffix(".bias")
        source = source_of(arch, config, short, layer, names)
        tensors = source.tensors(str(layer), is_bias=name != short)
        if not isinstance(matrix, np.ndarray):
            tensors = [tensor.removesuffix(source.suffixes[0]) for tensor in tensors]
        elif (source.factor, source.offset) != (1.0, 0.0):
            matrix = ((matrix - source.offset) / source.factor).astype(matrix.dtype)
        size = _num_rows(matrix) // len(tensors)
        for e, tensor in enumerate(tensors):
            part = matrix if len(tensors) == 1 else _rows(matrix, slice(e * size, (e + 1) * size))
            places = source.places(size, config)
            by_tensor.setdefault(tensor, []).append((places, part))
    return {tensor: _joined(parts) for tensor, parts in by_tensor.items()}


def source_of(
    arch: Arch, config: ModelConfig, name: str, layer: int | None, names: Container[str]
) -> TensorSource:
    """Return where a folder has a weight; those of experts lie in a tensor each, if the family ever has them so."""
    source = arch.source(name, config, "hf")
    return source if "{e}" in source.name else source.resolve(str(layer), names)


def need_apart(arch: Arch, config: ModelConfig) -> None:
    """Raise ConfigError for a family whose experts lie in one tensor, which the layouts have no form for."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    if any(kind.experts for kind in layers):
        source = arch.source("expert_up", config, "hf")
        if "{e}" not in source.name:
            raise ConfigError(
                f"quantization of {config.family} is not supported: its experts lie in one tensor "
                f"('{source.name}'); --quant int8 or int4 rounds them as they are loaded"
            )


def _num_rows(matrix: Matrix) -> int:
    return len(matrix) if isinstance(matrix, np.ndarray) else len(matrix.codes)


def _rows(matrix: Matrix, index: slice | np.ndarray) -> Matrix:
    return matrix[index] if isinstance(matrix, np.ndarray) else matrix.rows(index)


def _joined(parts: list[tuple[np.ndarray, Matrix]]) -> Matrix:
    """Return matrices as one, each row at its place."""
    places = np.concatenate([places for places, _ in parts])
    matrix = _below([matrix for _, matrix in parts])
    if (places == np.arange(len(places))).all():
        return matrix
    order = np.argsort(places)
    assert (places[order] == np.arange(len(places))).all(), "a fused tensor is written as a whole"
    return _rows(matrix, order)


def _below(parts: list[Matrix]) -> Matrix:
    codes = [part for part in parts if isinstance(part, Codes)]
    if not codes:
        return np.concatenate(parts)  # type: ignore[arg-type]  # none is coded
    return below_each_other(codes)


def below_each_other(parts: list[Codes]) -> Codes:
    """Return codes of matrices one below the other; flattened ones read the same inputs."""
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        parts[0],
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=np.concatenate(zeros) if zeros else None,
    )


def config_json(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, object]:
    """Make the config.json of the model in fp16. Raises LoadError for a GGUF of a family that we cannot describe."""
    if checkpoint.kind == "hf":
        if "text_config" in checkpoint.config:
            raise LoadError(
                f"{checkpoint.architecture} also sees or hears: its text half cannot be written alone"
            )
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
    return described(config)


def described(config: ModelConfig) -> dict[str, object]:
    """Make the config.json of a model in fp16 of one of the families that need no more than sizes."""
    assert config.rope is not None
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
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied_head,
        "torch_dtype": "float16",
    }


def write_other_files(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files beside weights and config.json: copies of a folder's, or made from a GGUF's metadata.

    Raises LoadError for a tokenizer that cannot be read, OSError.
    """
    if checkpoint.kind == "hf":
        for path in sorted(checkpoint.path.iterdir()):
            if path.is_file() and path.suffix not in _NOT_COPIED and path.name not in _NOT_KEPT:
                shutil.copyfile(path, folder / path.name)
        if (templates := checkpoint.path / _TEMPLATES).is_dir():
            shutil.copytree(templates, folder / _TEMPLATES, dirs_exist_ok=True)
        return
    _write_tokenizer(checkpoint.tokenizer(), folder)


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    encoding = tokenizer._encoding
    encoder, written = encoding.encoder, json.loads(encoding.encoder.to_str())
    model = written["model"]
    if isinstance(model["vocab"], dict):  # places of a list are ids
        # Padding would make it another vocabulary, which no shipped drafter is for.
        tokens, pieces = model["vocab"].items(), encoding.pieces
        model["vocab"] = {token: i for token, i in tokens if pieces[i] is not None}
    written["decoder"] = json.loads(_decoder(encoding).__getstate__())
    # Where there is a tokenizer.json, this alone says what stands around a text.
    written["post_processor"] = _post_processor(encoding)
    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    names = {"bos_token": encoding.bos_id, "eos_token": encoding.eos_id}
    settings: dict[str, object] = {
        key: encoder.id_to_token(i) for key, i in names.items() if i is not None
    }
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(encoding.prefix_ids),
        "clean_up_tokenization_spaces": False,
    }
    if encoding.chat_template is not None:
        settings["chat_template"] = encoding.chat_template
    _write_json(folder / "tokenizer_config.json", settings)
    ends = {"eos_token_id": sorted(encoding.eos_ids), "bos_token_id": encoding.bos_id}
    _write_json(folder / "generation_config.json", ends)


def _post_processor(encoding: Encoding) -> object:
    """Return what puts the tokens before and behind a text, as tokenizer.json has it."""
    around = (encoding.prefix_ids, encoding.suffix_ids)
    names = {i: encoding.encoder.id_to_token(i) for ids in around for i in ids}
    if not names:
        return None

    def pieces(kind: str, ids: Iterable[str | None]) -> list[object]:
        return [{kind: {"id": each, "type_id": 0}} for each in ids]

    def template(*letters: str) -> list[object]:
        before, behind = (pieces("SpecialToken", map(names.get, ids)) for ids in around)
        return [*before, *pieces("Sequence", letters), *behind]

    tokens = {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()}
    whole = {"single": template("A"), "pair": template("A", "B"), "special_tokens": tokens}
    return {"type": "TemplateProcessing", **whole}


def _decoder(encoding: Encoding) -> decoders.Decoder:
    if not encoding.encoder.model.byte_fallback:
        return decoders.ByteLevel()
    sentencepiece = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if encoding.adds_space:
        sentencepiece.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(sentencepiece)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
