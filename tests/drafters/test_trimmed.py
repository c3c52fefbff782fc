"""Folders of trimmed drafts: what goes in comes out, and what does not fit is told."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from forerun.core.errors import ConfigError, ForerunError, LoadError
from forerun.drafters.base import trimmed
from forerun.drafters.base.contract import LoadedModel
from forerun.drafters.base.draft_head import list_of
from forerun.drafters.base.trimmed import CONFIG, TENSORS, TrimmedConfig
from forerun.drafters.base.vocabulary import fingerprint
from forerun.drafters.draft_model import Options, build
from tests.drafters.models import DRAFT_MODEL, TARGET, VOCAB_SIZE

TOKENS = np.array([0, 3, 4, 11])


class Words:
    """A vocabulary."""

    vocab_size = VOCAB_SIZE

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def token_bytes(self, token_id: int) -> bytes | None:
        return f"{self.prefix}{token_id}".encode()

    def is_special(self, token_id: int) -> bool:
        return False


def config(**changes: object) -> TrimmedConfig:
    made = TrimmedConfig("tiny.gguf", "big", fingerprint(Words()), VOCAB_SIZE, len(TOKENS), 70)
    return replace(made, **changes)  # type: ignore[arg-type]


def load(model: str, **options: object) -> LoadedModel:
    assert model == "tiny.gguf"
    return LoadedModel(DRAFT_MODEL, Words())


OURS = replace(TARGET, vocabulary=Words(), load=load, path=Path("big.gguf"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trimmed.save(tmp_path / "trimmed", config(), TOKENS)
    return tmp_path / "trimmed"


def test_a_draft_is_cut_to_the_tokens_of_its_folder(folder: Path) -> None:
    tensors = safetensors.numpy.load_file(folder / TENSORS)
    assert (np.arange(4) + tensors["d2t"]).tolist() == TOKENS.tolist()
    assert np.flatnonzero(tensors["t2d"]).tolist() == TOKENS.tolist()
    assert trimmed.load(str(folder), OURS)[1].tolist() == TOKENS.tolist()
    head = build(Options(model=str(folder)), OURS).head
    assert head is not None
    rows = head.scores(np.zeros((1, DRAFT_MODEL.config.hidden_size), np.float32), [head.new_text()])
    assert rows[0].tokens is not None
    assert rows[0].tokens.tolist() == TOKENS.tolist()
    assert build(Options(model=str(folder), draft_vocab="full"), OURS).head is None


def test_its_list_cuts_other_heads(tmp_path: Path, folder: Path) -> None:
    """A network's, or another draft's: the tokens that the target's own answers have."""
    listed = list_of(str(folder), OURS, VOCAB_SIZE)
    assert listed is not None
    assert listed.tolist() == TOKENS.tolist()
    head = build(Options(model="tiny.gguf", draft_vocab=str(folder)), OURS).head
    assert head is not None
    assert head.nbytes(1) == build(Options(model=str(folder)), OURS).head.nbytes(1)
    with pytest.raises(ConfigError, match=r"a number from 1 or a folder of forerun trim-vocab"):
        Options(model="tiny.gguf", draft_vocab=str(tmp_path / "none"))
    with pytest.raises(LoadError, match="cannot be read"):
        list_of(str(tmp_path), OURS, VOCAB_SIZE)


def test_what_is_no_such_folder_is_a_model(tmp_path: Path, folder: Path) -> None:
    assert trimmed.is_one(str(folder))
    assert not trimmed.is_one("self")
    assert not trimmed.is_one(str(tmp_path))
    (tmp_path / CONFIG).write_text('{"model_type": "llama"}')
    assert not trimmed.is_one(str(tmp_path))


def test_a_target_of_another_vocabulary_is_refused(folder: Path) -> None:
    other = replace(OURS, vocabulary=Words("x"))
    with pytest.raises(ConfigError, match=r"trimmed for big .* this model has another vocabulary"):
        build(Options(model=str(folder)), other)


def test_another_target_of_the_vocabulary_is_told(folder: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        build(Options(model=str(folder)), OURS)
        assert not caplog.records
        build(Options(model=str(folder)), replace(OURS, path=Path("bigger.gguf")))
    assert "was trimmed for the words of big, not of bigger" in caplog.text


def test_a_folder_has_a_list_of_its_own(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has a list of its own; leave it out, or give full"):
        build(Options(model=str(folder), draft_vocab="3"), OURS)


def swap(folder: Path, **tensors: np.ndarray) -> None:
    stored = safetensors.numpy.load_file(folder / TENSORS)
    (folder / TENSORS).write_bytes(safetensors.numpy.save({**stored, **tensors}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / TENSORS).unlink(), "has no model.safetensors"),
        (lambda f: (f / TENSORS).write_bytes(b"torn"), "cannot be read"),
        (lambda f: (f / CONFIG).write_text("{"), "cannot be read"),
        (lambda f: (f / CONFIG).write_text("[]"), "not a JSON object"),
        (lambda f: swap(f, d2t=np.array([0, 0, 0, 0])), "does not name the tokens of 'd2t'"),
        (
            lambda f: swap(f, d2t=np.empty(0, np.int64), t2d=np.zeros(12) > 0),
            "must be ascending token ids below 12",
        ),
        (
            lambda f: (f / CONFIG).write_text(json.dumps({"model_type": trimmed.KIND})),
            "is not a trimmed draft",
        ),
    ],
)
def test_damage_is_told(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(LoadError, match=message):
        build(Options(model=str(folder)), OURS)


def test_a_value_of_another_kind_is_told(folder: Path) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), "draft": 3}))
    with pytest.raises(LoadError, match="its draft is 3"):
        build(Options(model=str(folder)), OURS)


def test_more_tokens_than_the_model_has_are_told(folder: Path) -> None:
    trimmed.save(folder, config(vocab_size=40), TOKENS)
    with pytest.raises(ForerunError, match="has 40 tokens, more than the model"):
        build(Options(model=str(folder)), OURS)
