"""Names of models: as files of several makers write them, one name each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forerun.weights.base import Checkpoint
from forerun.weights.identity import identity_of, plain

NAMES = [
    ("Qwen/Qwen3-8B", "qwen3-8b"),
    ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-1.5b-instruct"),
    ("Qwen2.5 Coder 1.5B Instruct GGUF", "qwen2.5-coder-1.5b-instruct"),
    ("https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct"),
    ("Meta-Llama-3.1-8B-Instruct-Q4_K_M-00001-of-00003.gguf", "llama-3.1-8b-instruct"),
    ("gpt-oss-20b-mxfp4", "gpt-oss-20b"),
    ("Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL", "qwen3-30b-a3b-instruct-2507"),
    ("Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b-instruct-quantized"),
    ("Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b-instruct"),
    ("gemma-3-4b-it-qat-q4_0-gguf", "gemma-3-4b-it"),
]


@pytest.mark.parametrize(("written", "name"), NAMES)
def test_a_name_is_the_same_however_it_is_written(written: str, name: str) -> None:
    assert plain(written) == name
    assert plain(name) == name


def checkpoint(path: str, kind: str, **config: object) -> Checkpoint:
    return cast(Checkpoint, SimpleNamespace(path=Path(path), kind=kind, config=cast(Any, config)))


def test_a_gguf_says_its_name_and_that_of_its_base() -> None:
    config = {
        "general.basename": "Hermes-4",
        "general.size_label": "8B",
        "general.base_model.count": 1,
        "general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3-8B",
    }
    found = identity_of(checkpoint("/models/hermes.Q4_K_M.gguf", "gguf", **config))
    assert found.names == ("hermes-4-8b", "hermes")
    assert found.bases == ("qwen3-8b",)


def test_a_folder_of_the_hub_has_its_repositorys_name() -> None:
    path = "/cache/models--Qwen--Qwen3-8B/snapshots/abc"
    assert "qwen3-8b" in identity_of(checkpoint(path, "hf")).names


def test_what_a_file_says_may_be_anything() -> None:
    odd = {"general.base_model.count": "many", "general.name": 7, "_name_or_path": ""}
    assert identity_of(checkpoint("/m/model.gguf", "gguf", **odd)).names == ("model",)
