"""A drafter that does not fit is refused in a line before any weight is read, of the model or of the drafter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from forerun import LLM
from forerun.core.errors import ConfigError, LoadError
from forerun.engine.loaded import Loaded
from forerun.weights.stored import StoredTensor
from tests.drafters.test_eagle3 import OUR_TENSORS, OURS, save
from tests.drafters.test_eagle_layouts import gguf_file, network, safeailab
from tests.weights.files import write_gguf


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights may be read, nor dequantized."""

    def read(*args: object, **options: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(Loaded, "of", read)
    monkeypatch.setattr(StoredTensor, "dequantize", read)


def head(path: Path, config: dict[str, object], **tensors: np.ndarray) -> str:
    """A head that fits the tiny model but for what is given."""
    return save(
        path, OURS | {"vocab_size": 267, "target_hidden_size": 32} | config, OUR_TENSORS | tensors
    )


def of_float8(path: Path) -> str:
    """One whose projection has a kind that no network is stored as."""
    name, folder = head(path, {}), path / "model.safetensors"
    data = folder.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    entry = header["norm.weight"]
    entry["dtype"], entry["shape"] = "F8_E4M3", [4 * entry["shape"][0]]
    packed = json.dumps(header).encode()
    folder.write_bytes(len(packed).to_bytes(8, "little") + packed + data[8 + size :])
    return name


def sibling(path: Path) -> str:
    """A model of another tokenizer."""
    path.mkdir()
    return str(write_gguf(path / "small.gguf", tokenizer="llama"))


MADE = {
    "vocabulary": (lambda p: head(p, {"vocab_size": 24}), "it reads a vocabulary of 24, this model has"),
    "width": (lambda p: head(p, {"target_hidden_size": 48}), "it reads states of width 48, this model has"),
    "layers": (lambda p: head(p, {"layers": [0, 1, 9]}), r"three layers of 0 to 1 must be read, got \[0, 1, 9\]"),
    "dtype": (of_float8, "tensor 'norm.weight' is F8_E4M3, which no network is stored as"),
    "target": (lambda p: head(p, {"target": {"name": "big", "num_layers": 40}}),
               "was trained for big, whose num layers is 40; this model's is 2"),
    "layout of others": (lambda p: safeailab(p, *network("plain")), "this model has"),
    "a GGUF head": (lambda p: p.mkdir() or gguf_file(p / "head.gguf", "plain"), "reads a vocabulary of 24, this model"),
    "a sibling": (sibling, "cannot draft for this model: "),
}  # fmt: skip


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("kind", MADE)
def test_a_drafter_of_another_model_is_told_before_weights_are_read(
    kind: str, tmp_path: Path, tiny_gguf: Path
) -> None:
    make, message = MADE[kind]
    model = make(tmp_path / "drafter")
    with pytest.raises((LoadError, ConfigError), match=message) as caught:
        LLM(tiny_gguf, draft_model=model, max_model_len=64)
    assert "\n" not in str(caught.value)
