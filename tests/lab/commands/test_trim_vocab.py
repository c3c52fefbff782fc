"""`forerun trim-vocab`, as a user meets it: a folder, its use as a draft, and what cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from forerun.cli import options
from forerun.drafters.base.vocabulary import fingerprint
from forerun.lab.train import trim
from forerun.weights.checkpoint import open_checkpoint
from tests.cli.helpers import FEW, the_json

TEXT = "The sea is blue. The sea is wide. The sea and the sky are blue.\n"


@pytest.fixture
def trim_vocab(forerun, default_model, tmp_path):
    given = ("-m", default_model, "-c", 256, "--draft", default_model, "-o", tmp_path / "small")
    return lambda *more: forerun("trim-vocab", *given, *more)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def answers(tmp_path, default_model):
    """Two answers, the second one torn: the file is being written."""
    tokenizer = open_checkpoint(default_model).tokenizer()
    rows = [
        {"origin": {"model": "any", "vocabulary": fingerprint(tokenizer)}},
        {"key": "a/0", "prompt": [1, 2], "answer": tokenizer.encode(TEXT, bos=False)},
    ]
    path = tmp_path / "a.answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"key": "b/0", "pro')
    return path


def test_a_draft_is_trimmed_measured_and_used(
    trim_vocab, forerun, default_model, answers, tmp_path, monkeypatch
) -> None:
    before = answers.read_bytes()
    monkeypatch.setattr(trim, "SIZES", (4096,))
    monkeypatch.setattr(trim, "ROUNDS", 1)
    monkeypatch.setattr(trim, "fastest", lambda figures, out: 4096)
    code, out, err = trim_vocab(
        "--answers", answers, "--prompts", FEW, "--limit", 1, "-n", 12, "--json"
    )
    assert (code, err) == (0, "")
    document = the_json(out)
    assert document["draft_vocab_size"] == 4096
    assert document["said"] == 1.0
    whole, cut = document["sizes"]
    assert (whole["size"], cut["size"]) == (None, 4096)
    assert cut["mbsu"] / cut["tau"] > whole["mbsu"] / whole["tau"]
    assert 1 <= cut["tau"] <= whole["tau"] + 1e-9
    assert answers.read_bytes() == before

    code, _, err = forerun("trim-vocab", "--draft", tmp_path / "small", "-o", tmp_path / "b")
    assert (code, err.count("\n")) == (2, 1)
    assert "is trimmed already" in err

    code, out, _ = forerun("check", default_model, tmp_path / "small", "--json")
    found = the_json(out)
    assert (code, found["compatible"], found["draft_vocab"]) == (0, True, 4096)
    assert (
        found["cost"]
        < the_json(forerun("check", default_model, default_model, "--json")[1])["cost"]
        == 1
    )

    draft = f"draft_model:model={tmp_path / 'small'}"
    code, out, _ = forerun(
        *("verify", "-d", draft, "--prompts", FEW, "-n", 24, "--limit", 2, "--json")
    )
    assert code == 0


def test_a_size_that_is_given_is_not_measured(trim_vocab, texts, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trim, "measure", lambda *of: pytest.fail("it was measured"))
    code, out, err = trim_vocab("--texts", texts, "--size", 1000)
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'small'}: 1000 of 49152 tokens, 100.00% of the" in out.replace("\n", "")


def test_where_no_list_is_faster_nothing_is_written(
    trim_vocab, texts, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(
        trim,
        "measure",
        lambda *of, **more: [
            dict.fromkeys(("coverage", "tau", "mbsu", "tok_s", "gain", "draft_ms"), 1)
            | {"size": None}
        ],
    )
    code, out, err = trim_vocab("--texts", texts)
    assert (code, err.count("\n")) == (2, 1)
    assert "no list is faster than the whole head here" in err
    assert "against all" in out
    assert not (tmp_path / "small").exists()


def test_what_cannot_be_is_told_in_one_line(
    trim_vocab, texts, tmp_path, monkeypatch, empty_cache
) -> None:
    load, loaded = options.load, {}
    monkeypatch.setattr(
        options, "load", lambda config: loaded.get(0) or loaded.setdefault(0, load(config))
    )
    empty, foreign = tmp_path / "empty.txt", tmp_path / "foreign.jsonl"
    empty.write_text("")
    foreign.write_text('{"origin": {"vocabulary": "9-0"}}\n')
    for arguments, message in (
        (("--size", "many"), "--size must be auto or a number from 1, got 'many'"),
        (("--size", "0"), "--size must be auto"),
        (("--size", "50000", "--texts", texts), "--size 50000 is more than the 49152 tokens"),
        (("--size", "3", "--texts", texts), "--size 3 is too few"),
        (("--num-draft", "0"), "--num-draft must be at least 1"),
        ((), "forerun train table makes them, or give --answers or --texts"),
        (("--texts", empty), f"{empty} holds no tokens to count"),
        (("--texts", tmp_path / "none.txt"), "none.txt"),
        (("--answers", foreign), "holds answers of another vocabulary (9-0, this model has"),
        (("-o", texts), "is a file: name a folder"),
        (("-o", "/dev/null/a", "--size", "999", "--texts", texts), "cannot be written"),
        (("--draft", "nowhere.gguf"), "nowhere.gguf"),
    ):
        code, out, err = trim_vocab(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err


def test_counting_and_its_share() -> None:
    counts = trim.count([[3, 3, 5, 9], [5, 3]], 6)
    assert counts.tolist() == [0, 0, 0, 3, 0, 2]
    assert trim.ranked(counts) == [3, 5, 0, 1, 2, 4]
    assert trim.coverage(counts, np.array([0, 3])) == pytest.approx(0.6)
    assert trim.coverage(counts, None) == 1
