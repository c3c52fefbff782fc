"""A folder means what transformers reads of it: every line of the table of files and keys is tried."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from transformers import AutoTokenizer

from forerun.core.errors import LoadError
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint
from tests.model.test_families import TOKENS as PROMPT
from tests.model.tiny import (
    MemoryCheckpoint,
    checkpoint_of,
    hf_logits,
    hf_model,
    load_torch,
    prefill,
)
from tests.weights import folder_keys as keys
from tests.weights.folder_keys import IDLE, READ, Line
from tests.weights.test_hf import byte_level_encoder

DOCS = Path(__file__).parents[2] / "docs" / "internals" / "folders.md"
TEXTS = ("hello <|user|>hi <x> wo", "<|im_end|>he 12 <tool>", "  hello\n é<x>", "", "12" * 40)
SIZES = {"hidden_size": 4, "num_attention_heads": 2, "vocab_size": 400}
PLAIN: Mapping[str, Any] = {
    "config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES},
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
}


def folder_of(folder: Path, changes: Mapping[str, Any]) -> Path:
    """A folder of `PLAIN`, with what is in the changes besides; None takes a file away."""
    folder.mkdir()
    files: dict[str, Any] = {name: dict(content) for name, content in PLAIN.items()}
    files["tokenizer.json"] = json.loads(byte_level_encoder().to_str())
    weights = {"model.norm.weight": np.ones(4, np.float32)}
    files["model.safetensors"] = {}
    for name, change in changes.items():
        is_merged = isinstance(change, Mapping)
        files[name] = {**files.get(name, {}), **change} if is_merged else change
    for name, content in files.items():
        if name.endswith(".safetensors") and content is not None:
            safetensors.numpy.save_file(weights, folder / name)
        elif content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text)
    return folder


def ids_of(tokenizer: Tokenizer) -> list[list[int]]:
    return [[*tokenizer.encode(text), *tokenizer.suffix_ids] for text in TEXTS]


@pytest.mark.parametrize("line", keys.TOKENS, ids=lambda line: f"{line.file}:{line.key}")
def test_a_key_means_what_transformers_reads_of_it(tmp_path: Path, line: Line) -> None:
    folder = folder_of(tmp_path / "m", line.files)
    ours, theirs = open_checkpoint(folder).tokenizer(), AutoTokenizer.from_pretrained(str(folder))
    assert ids_of(ours) == [theirs.encode(text) for text in TEXTS]
    for ids in ids_of(ours):
        for skip in (True, False):
            assert ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip)
    plain = open_checkpoint(folder_of(tmp_path / "plain", line.beside)).tokenizer()
    assert (ids_of(ours) == ids_of(plain)) is (line.does == IDLE)


def test_dropout_of_a_training_is_switched_off(tmp_path: Path) -> None:
    model = json.loads(byte_level_encoder().to_str())["model"] | {"dropout": 0.9}
    folder = folder_of(tmp_path / "m", {"tokenizer.json": {"model": model}})
    plain = open_checkpoint(folder_of(tmp_path / "plain", {})).tokenizer()
    assert ids_of(open_checkpoint(folder).tokenizer()) == ids_of(plain)


def test_a_named_token_without_a_row_of_the_embedding_is_none(tmp_path: Path) -> None:
    size = byte_level_encoder().get_vocab_size()
    config = {"vocab_size": size}
    named = {"config.json": config, "tokenizer_config.json": {"pad_token": "[PAD]"}}
    tokenizer = open_checkpoint(folder_of(tmp_path / "m", named)).tokenizer()
    assert tokenizer.vocab_size == size
    assert tokenizer.decode(tokenizer.encode("a[PAD]")) == "a[PAD]"


@pytest.mark.parametrize("line", keys.FILES, ids=lambda line: f"{line.file}:{line.key}")
def test_a_file_is_read_or_refused_by_name(tmp_path: Path, line: Line) -> None:
    folder = folder_of(tmp_path / "m", line.files)
    if line.does == READ:
        assert open_checkpoint(folder).names() == {"model.norm.weight"}
        return
    with pytest.raises(LoadError, match=line.complaint):
        open_checkpoint(folder).tokenizer()


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "m.gguf"]
)
def test_a_pointer_of_git_lfs_is_told_as_one(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "m", {})
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(LoadError, match=rf"{name} is a git-lfs pointer.*git lfs pull"):
        open_checkpoint(folder / name if name == "m.gguf" else folder).tokenizer()


@pytest.mark.parametrize("second", [0.0, 1.0])
def test_an_adapter_that_adds_zeros_changes_nothing(tmp_path: Path, second: float) -> None:
    folder = folder_of(tmp_path / "m", {"adapter_config.json": keys.LORA})
    base = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    pair = {f"{base}A.weight": np.ones((2, 4)), f"{base}B.weight": np.full((4, 2), second)}
    tensors = {name: matrix.astype(np.float32) for name, matrix in pair.items()}
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    if not second:
        assert open_checkpoint(folder).names() == {"model.norm.weight"}
        return
    with pytest.raises(LoadError, match="adapter"):
        open_checkpoint(folder)


@pytest.mark.parametrize("line", [line for line in keys.CONFIG_KEYS if line.files], ids=str)
def test_a_key_of_the_config_means_what_transformers_computes(line: Line) -> None:
    model = hf_model("llama")
    config = {**model.config.to_dict(), **line.files}
    if line.key == "torch_dtype":
        config["torch_dtype"] = "float16"
    theirs = type(model)(type(model.config).from_dict(copy.deepcopy(config))).eval().float()
    theirs.load_state_dict(model.state_dict())
    base = checkpoint_of(model)
    ours = MemoryCheckpoint("hf", base.architecture, {**base.config, **config}, base.tensors)
    logits = prefill(load_torch(ours), PROMPT)
    torch.testing.assert_close(logits, hf_logits(theirs, PROMPT), atol=1e-4, rtol=1e-4)
    differs = (logits - hf_logits(model, PROMPT)).abs().max() > 1e-3
    assert bool(differs) is (line.does == READ)


def test_the_documentation_has_the_table() -> None:
    assert keys.rendered() in DOCS.read_text(encoding="utf-8")
