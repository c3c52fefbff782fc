"""`forerun train table`, as a user meets it: answers, a table, an interruption, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.engine.loop import EngineLoop
from forerun.lab.store import read
from forerun.lab.train import answers
from tests.cli.helpers import FEW, the_json

PROMPTS = ("Count to ten.", "Name a colour.", "What is a prime number?", "Say hello.")


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    monkeypatch.setattr(answers, "MAX_TOKENS", 16)


@pytest.fixture
def train(forerun, default_model, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    given = ("-m", default_model, "-c", 256, "--prompts", prompts)
    return lambda *more: forerun("train", "table", *given, *more)


def test_a_table_is_made_found_and_used_and_an_interruption_loses_nothing(
    train, forerun, default_model, tmp_path, monkeypatch, empty_cache
) -> None:
    step, steps = EngineLoop.step, iter(range(1000))

    def interrupted(self, waiting=None):
        if next(steps) == 24:
            raise KeyboardInterrupt
        return step(self, waiting)

    monkeypatch.setattr(EngineLoop, "step", interrupted)
    code, out, err = train("--tokens", "0.4k")
    assert code == 130
    assert not out
    assert "of 400 tokens are in" in err
    assert "goes on" in err
    monkeypatch.setattr(EngineLoop, "step", step)

    table = empty_cache / "tables" / "smollm2-135m-instruct.table"
    store = table.with_suffix(".answers.jsonl")
    before = read(store)[1]
    assert not table.exists()
    code, out, err = train("--tokens", "0.4k", "--json")
    assert (code, err.count("error")) == (0, 0)
    document = the_json(out)
    after = read(store)[1]
    assert before.items() <= after.items()
    assert document["tokens"] == sum(len(row["answer"]) for row in after.values()) >= 400
    assert document["model"] == "smollm2-135m-instruct"
    assert Path(document["table"]) == table
    assert all(size["tau"] >= 1 for size in document["sizes"])
    assert before

    written = table.read_bytes()
    code, out, _ = train("--tokens", "0.4k")  # all is there
    assert code == 0
    assert "tokens per pass (tau)" in out
    assert table.read_bytes() == written
    assert read(store)[1] == after
    code, out, err = forerun(
        *("verify", "-m", default_model, "-d", f"recycling:table={table}"),
        *("--prompts", FEW, "-n", 16, "--limit", 1),
    )
    assert code == 0


def test_what_the_model_shows_to_be_wrong_is_told_in_one_line(train, tmp_path) -> None:
    code, _, err = train("-c", 8, "-o", tmp_path / "a.table")
    assert (code, err.count("\n")) == (2, 1)
    assert "no prompt fits" in err
    store = tmp_path / "b.answers.jsonl"
    store.write_text('{"origin": {"model": "another"}}\n')
    code, _, err = train("-o", tmp_path / "b.table")
    assert (code, err.count("\n")) == (2, 1)
    assert "another run's results" in err


def test_train_alone_is_help(forerun) -> None:
    code, out, _ = forerun("train")
    assert code == 0
    assert "table" in out
