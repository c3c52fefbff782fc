"""A GGUF's metadata mean what llama.cpp reads of them: every line of the table is tried, or its test is there."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from forerun.core.errors import LoadError
from forerun.weights.checkpoint import open_checkpoint
from tests.model.gguf_converter import as_gguf
from tests.model.test_families import TOKENS as PROMPT
from tests.model.test_families import assert_close
from tests.model.tiny import YARN, hf_logits, hf_model, load_torch, prefill
from tests.weights import gguf_keys as keys
from tests.weights.folder_keys import IDLE, REFUSED
from tests.weights.gguf_keys import Line
from tests.weights.raw_gguf import RawGguf

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "internals" / "folders.md"
TEXTS = ("hello", "12", "", " hello w <tool>he", "é<|im_end|>  he", "<unk>he\n")
TRIED = [line for line in keys.LINES if not line.held]


def written(path: Path, *parts: Mapping[str, Any]) -> Path:
    """A file with the metadata of all parts, the last of each key, without those that are None."""
    metadata: dict[str, Any] = {"general.architecture": "llama"}
    for part in parts:
        metadata |= part
    metadata = {key: value for key, value in metadata.items() if value is not None}
    path.write_bytes(RawGguf.of(metadata, {"w": np.ones((2, 2))}).to_bytes())
    return path


def aspects(path: Path) -> dict[str, Any]:
    checkpoint = open_checkpoint(path)
    tokenizer = checkpoint.tokenizer()
    ids = {text: tokenizer.encode(text) for text in TEXTS}
    return {
        "ids": ids,
        "texts": [tokenizer.decode(each, skip_special=False) for each in ids.values()],
        "ends": set(tokenizer.eos_ids),
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "suffix": tuple(tokenizer.suffix_ids),
        "space": tokenizer.adds_space,
        "fill": tokenizer.fill_in,
        "template": tokenizer.chat_template,
        "sampling": checkpoint.default_params(),
    }


def name(line: Line) -> str:
    return f"{line.key}-{line.does}"


@pytest.mark.parametrize("line", [line for line in TRIED if line.key[0] != "."], ids=name)
def test_a_key_has_the_effect_that_the_table_says(tmp_path: Path, line: Line) -> None:
    changed = written(tmp_path / "changed.gguf", line.of, line.beside, line.change)
    if line.does == REFUSED:
        with pytest.raises(LoadError, match=line.complaint):
            aspects(changed)
        return
    fields = gguf.GGUFReader(changed).fields
    for key, value in line.change.items():
        assert fields[key].contents() == pytest.approx(value)
    before = aspects(written(tmp_path / "plain.gguf", line.of, line.beside))
    after = aspects(changed)
    differing = {key for key in before if before[key] != after[key]}
    assert differing == line.shows.keys() - {"to"}
    for key in differing:
        assert_shown(key, line.shows, before[key], after[key])


def assert_shown(key: str, shows: Mapping[str, Any], before: Any, after: Any) -> None:
    """Check that what differs is what the line says."""
    expected = shows[key]
    if key == "ids":
        assert before[expected] != after[expected]
        assert after[expected] == shows.get("to", after[expected])
    elif key == "fill":
        assert getattr(after, expected[0]) == expected[1] != getattr(before, expected[0])
    elif key == "texts":
        assert after[: len(expected)] == expected
    elif key == "ends":
        assert expected <= after
    else:
        assert after == expected


@pytest.mark.parametrize("line", [line for line in TRIED if line.key[0] == "."], ids=name)
def test_a_key_of_an_architecture_has_the_effect_that_the_table_says(line: Line) -> None:
    model = hf_model("llama")

    def logits(*parts: Mapping[str, Any]) -> torch.Tensor:
        metadata = {key[1:]: value for part in parts for key, value in part.items()}
        return prefill(load_torch(as_gguf(model, "llama", metadata)), PROMPT)

    if line.does == REFUSED:
        with pytest.raises(LoadError, match=line.complaint):
            logits(line.beside, line.change)
        return
    difference = (logits(line.beside, line.change) - logits(line.beside)).abs().max()
    assert bool(difference > 1e-4) is (line.does != IDLE)


@pytest.mark.parametrize("line", [line for line in keys.LINES if line.held], ids=name)
def test_what_holds_a_key_is_there(line: Line) -> None:
    path, _, what = line.held.partition("::")
    assert what in (TESTS / path).read_text(encoding="utf-8")


def test_the_factor_on_cos_and_sin_is_besides_that_of_yarn() -> None:
    sharper = 1.5 * (0.1 * np.log(YARN["factor"]) + 1)
    rope = {"rope_theta": 5000.0, **YARN, "attention_factor": float(sharper)}
    model = hf_model("llama", rope_parameters=rope)
    metadata = {key[1:]: value for key, value in keys._YARN.items()}
    metadata |= {"rope.freq_base": 5000.0, "rope.scaling.attn_factor": 1.5}
    metadata["rope.scaling.original_context_length"] = YARN["original_max_position_embeddings"]
    assert_close(
        prefill(load_torch(as_gguf(model, "llama", metadata)), PROMPT), hf_logits(model, PROMPT)
    )


@pytest.mark.parametrize("has_divisors", [True, False])
def test_the_factor_on_cos_and_sin_is_that_of_any_scaling(has_divisors: bool) -> None:
    file = as_gguf(hf_model("llama"), "llama", {"rope.scaling.attn_factor": 1.5})
    if has_divisors:
        half = file.config["llama.attention.key_length"] // 2  # type: ignore[operator]
        file.tensors["rope_freqs.weight"] = torch.ones(half)  # type: ignore[index]
    rope = load_torch(file).config.layer(0).rope
    assert rope is not None
    assert rope.attention_factor == 1.5


def test_the_documentation_has_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert keys.rendered() in text
    assert max(map(len, keys.rendered().splitlines())) <= 120
