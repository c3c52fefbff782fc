"""Tiny files of the kinds of models that are not llamas, with a real tokenizer, for whole engines.

Their weights are random, and they know the words of `TEXTS` alone: all other tokens have the logit 0. So greedy text
walks about in few tokens, where drafts find something to copy, some of it right and some wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest

pytest.importorskip("torch")

import torch

from forerun.weights.checkpoint import open_checkpoint
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_files import METADATA, add
from tests.model.gguf_spellings import SPELLINGS
from tests.model.tiny import hf_model
from tests.native.test_llama_cpp import CHANGES

KINDS = ("gemma3", "gemma3n", "gemma4", "gemma4_moe", "gpt_oss", "qwen3_moe", "olmo2")
KINDS += ("cohere2", "hunyuan", "glm4")
KINDS += (
    "qwen3_5",
    "qwen3_next",
    "granite4_mamba",
    "lfm2",
    "lfm2_moe",
    "nemotron_h",
    "nemotron_h_moe",
)
KINDS += ("glm4_moe", "ernie4_5_moe", "deepseek_v2", "deepseek_v3")
TEXTS = (
    "One two three four. One two three four. One two",
    "List the months of the year, then list the months of the year again, then once more:",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
)
SHARPNESS = 3.0
"""Of the logits: where it is low, sampled text has no repetition, where it is high, nothing else."""


def write(kind: str, tokenizer: Path, path: Path) -> Path:
    """Write the file of a kind with the tokenizer of another file."""
    entries, known = _words(tokenizer)
    vocab = next(len(value) for name, value, *_ in entries if name == "tokenizer.ggml.tokens")
    _, architecture, changes, metadata = next(each for each in SPELLINGS if each[0] == kind)
    sizes: dict[str, Any] = {"vocab_size": vocab, "hidden_size": 64, "tie_word_embeddings": False}
    if kind == "gemma4":
        sizes["vocab_size_per_layer_input"] = vocab
    # Of Gemma 3n few tokens have embeddings for each layer, the others those of token 0.
    few = {"vocab_size_per_layer_input": 64} if kind == "gemma3n" else {}
    model = hf_model(kind, **{**sizes, **changes, **CHANGES.get(kind, {}), **few})
    metadata = {**metadata, **METADATA.get(kind, {})}
    if (
        "final_logit_softcapping" in metadata
    ):  # with a low cap no token is likely, and nothing would be drafted
        metadata["final_logit_softcapping"] = 30.0
    checkpoint = as_gguf(model, architecture, metadata)
    tensors = dict(checkpoint.tensors)
    head = torch.zeros_like(tensors["output.weight"])
    head[known] = SHARPNESS * tensors["output.weight"][known]
    tensors["output.weight"] = head
    if (
        kind == "olmo2"
    ):  # beside normed sublayers small embeddings would be lost, and text would stand still
        tensors["token_embd.weight"] = 8 * tensors["token_embd.weight"]
    if architecture == "gemma4":  # the first quarter of a head is rotated
        tensors["rope_freqs.weight"] = torch.where(torch.arange(16) < 4, 1.0, 1e30)
    writer = gguf.GGUFWriter(str(path), architecture)
    for entry in entries:
        writer.add_key_value(*entry)
    add(writer, replace(checkpoint, tensors=tensors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def _words(tokenizer: Path) -> tuple[list[tuple[str, Any, Any, Any]], list[int]]:
    """A file's tokenizer as entries to write, and the tokens of `TEXTS`."""
    entries = []
    for name, field in gguf.GGUFReader(tokenizer).fields.items():
        if name.startswith("tokenizer."):
            kind, *_, last = (*field.types, field.types[-1])
            sub = last if kind == gguf.GGUFValueType.ARRAY else None
            entries.append((name, field.contents(), kind, sub))
    encode = open_checkpoint(tokenizer).tokenizer().encode
    return entries, sorted({token for text in TEXTS for token in encode(text)})
