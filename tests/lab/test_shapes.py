"""Files of random weights in the shapes of known models are models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from dev.shape_file import Shape, Writer
from dev.shapes import SHAPES, tokenizer_of
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.native.models import prefill

NUM_LAYERS = 8
"""With one layer of each kind."""


def small(shape: Shape) -> Shape:
    """The same layers with few and narrow experts, a narrow state and hardly a vocabulary."""
    return replace(
        shape,
        vocab=320,
        width=256,
        inner=256,
        experts=min(shape.experts, 4),
        active=min(shape.active, 2),
        expert_inner=min(shape.expert_inner, 96),
    )


def tokenizer(path: Path, num_tokens: int = 4) -> Path:
    """Write a file of a tokenizer alone."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(num_tokens)])
    writer.add_token_types([1] * num_tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_a_model(name: str, tmp_path: Path) -> None:
    shape = small(SHAPES[name])
    writer = Writer(tmp_path / "shape.gguf", shape, NUM_LAYERS)
    writer.tokenizer(tokenizer_of(tokenizer(tmp_path / "tokenizer.gguf"), shape))
    writer.sizes()
    writer.write()
    checkpoint = open_checkpoint(tmp_path / "shape.gguf")
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 320  # type: ignore[attr-defined]
    model = load_model(checkpoint)
    assert model.config.num_layers == NUM_LAYERS
    logits = prefill(model, (1, 2, 3))
    assert np.isfinite(logits).all()
    assert np.ptp(logits) > 0


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    shape = small(SHAPES["llama-3.1-8b"])
    with pytest.raises(SystemExit, match="321 tokens, the shape has room for 320"):
        tokenizer_of(tokenizer(tmp_path / "large.gguf", 321), shape)
    with pytest.raises(SystemExit, match="there is no file"):
        tokenizer_of(tmp_path / "none.gguf", shape)
