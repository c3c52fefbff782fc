"""The memory that quantizing states before it starts is what it takes at most, and not much more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.tiny import hf_model

SCRIPT = Path(__file__).with_name("resident.py")
SIZES = {"vocab_size": 512, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 512}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system tells no peak"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    hf_model("llama", **SIZES).half().save_pretrained(path)
    return path


def check(model: Path, method: str, out: Path) -> None:
    arguments = [sys.executable, SCRIPT, model, method, out]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    figures = json.loads(printed.splitlines()[-1])
    assert figures["measured"] <= figures["stated"] <= 1.2 * figures["measured"], figures


@pytest.mark.parametrize("method", ["awq+gptq", "awq", "rtn", "flatten"])
def test_the_memory_that_is_stated_holds(model: Path, tmp_path: Path, method: str) -> None:
    check(model, method, tmp_path / "out")


def test_it_holds_where_a_vocabulary_is_written(default_model: Path, tmp_path: Path) -> None:
    check(default_model, "rtn", tmp_path / "out")
