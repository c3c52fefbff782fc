"""The other files of a Hugging Face folder: the tokenizer's files and generation_config.json.

Those of a folder are copied; those of a GGUF file are made from its metadata.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import tokenizers
from tokenizers import decoders

from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint

_NOT_COPIED = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx")
_WRITTEN = ("config.json", "quant_config.json", "model.safetensors.index.json")


def write_beside(checkpoint: Checkpoint, folder: Path) -> None:
    """Write or copy them into the folder. Raises LoadError for a tokenizer that cannot be read, OSError."""
    if checkpoint.kind == "hf":
        for path in sorted(checkpoint.path.iterdir()):
            if path.is_file() and path.suffix not in _NOT_COPIED and path.name not in _WRITTEN:
                shutil.copyfile(path, folder / path.name)
        return
    _write_tokenizer(checkpoint.tokenizer(), folder)


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    encoding = tokenizer._encoding
    encoder = tokenizers.Tokenizer.from_str(encoding.encoder.to_str())
    byte_level = decoders.ByteLevel()
    sentencepiece = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if encoding.adds_space:
        sentencepiece.append(decoders.Strip(" ", 1, 0))
    is_byte_level = not encoder.model.byte_fallback
    encoder.decoder = byte_level if is_byte_level else decoders.Sequence(sentencepiece)
    (folder / "tokenizer.json").write_text(encoder.to_str(), encoding="utf-8")
    names = {"bos_token": encoding.bos_id, "eos_token": encoding.eos_id}
    settings: dict[str, object] = {
        key: encoder.id_to_token(i) for key, i in names.items() if i is not None
    }
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": encoding.adds_bos,
        "clean_up_tokenization_spaces": False,
    }
    if encoding.chat_template is not None:
        settings["chat_template"] = encoding.chat_template
    _write_json(folder / "tokenizer_config.json", settings)
    ends = {"eos_token_id": sorted(encoding.eos_ids), "bos_token_id": encoding.bos_id}
    _write_json(folder / "generation_config.json", ends)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
