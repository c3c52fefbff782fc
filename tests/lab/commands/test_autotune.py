"""`forerun autotune` on the default model: it writes a profile, `auto` uses it, and what is broken is ignored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forerun import LLM
from forerun.engine import profile
from forerun.lab import store
from forerun.lab.tune import search
from forerun.lab.tune.search import Autotune
from forerun.weights.checkpoint import open_checkpoint
from tests.cli.helpers import the_json

ONE = "suffix:num_draft=2,factor=2,min_token_prob=0.2,max_depth=16"
"""Every option that could be tuned is given: one setting is scored."""
SPELLED = "suffix:max_depth=16,num_draft=2,factor=2.0,min_token_prob=0.2"
SHORT = ("--limit", 1, "-n", 8, "--repeats", 1, "-c", 256, "-t", 1)


@pytest.fixture
def forerun(forerun, monkeypatch, tmp_path):
    """Run a command in this process, with profiles of its own; returns (exit code, stdout, stderr)."""
    monkeypatch.setattr(profile, "folder", lambda: tmp_path)
    monkeypatch.setattr(search, "CONTEXTS", (16, 32))
    monkeypatch.setattr(search, "WIDTHS", (1, 4))
    return forerun


def test_autotune_writes_what_auto_uses(forerun, default_model, monkeypatch, tmp_path, caplog):
    tuned = ("autotune", "-m", default_model, "-d", ONE, *SHORT, "--json")
    code, out, _ = forerun(*tuned)
    document = the_json(out)
    assert code == 0
    assert [row["drafter"] for row in document["drafters"]] == [SPELLED]
    assert document["drafter"] in (SPELLED, "none")
    assert SPELLED in out
    measured = document["measured"]
    if measured:
        assert measured["identical"] == measured["prompts"] == 1
        assert measured["speedup"] > 0

    # A second run scores nothing.
    monkeypatch.setattr(Autotune, "_measure", None)
    code, again, _ = forerun(*tuned)
    assert code == 0
    assert the_json(again)["drafters"][0]["rows"] == document["drafters"][0]["rows"]

    # Whatever it chose here and now: let it be the one.
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"drafter": SPELLED}))
    llm = LLM(str(default_model), max_model_len=256, threads=1)
    assert llm.profile is not None
    assert llm.drafter_spec.text() == SPELLED
    assert llm.engine.proposer.controller.pass_cost.predict(4) == llm.profile.passes.costs(
        8
    ).predict(4)
    assert llm.with_drafter("auto").drafter_spec.text() == SPELLED
    assert llm.with_drafter("none").drafter_spec.name == "none"
    assert llm.with_drafter("auto", num_draft=3).drafter_spec.text() == "recycling:num_draft=3"
    assert profile.choices(open_checkpoint(default_model).files) == [SPELLED]

    llm.profile = replace(llm.profile, drafter="draft_model:model=gone.gguf")
    assert llm.with_drafter("auto").drafter_spec.text() == "mlp_speculator++recycling"
    (note,) = caplog.records
    assert "gone.gguf" in note.getMessage()


def test_ctrl_c_keeps_what_was_scored(forerun, default_model, monkeypatch, tmp_path):
    measure, scored = Autotune._measure, []

    def interrupted(self, drafter):
        if scored:
            raise KeyboardInterrupt
        scored.append(drafter)
        return measure(self, drafter)

    monkeypatch.setattr(Autotune, "_measure", interrupted)
    code, _, err = forerun("autotune", "-m", default_model, "-d", "prompt_lookup", *SHORT)
    assert code == 130
    assert "goes on where it was" in err
    (scores,) = tmp_path.glob("*.scores.jsonl")
    _, results = store.read(scores)
    assert [*results] == ["prompt_lookup"]
    assert not list(tmp_path.glob("*.json"))


def test_a_rounded_model_finds_its_own_profile(forerun, default_model, tmp_path):
    code, out, _ = forerun(
        "autotune", "-m", default_model, "-d", ONE, *SHORT, "--quant", "int8", "--json"
    )
    assert code == 0
    assert the_json(out)["setting"]["quant"] == "int8"
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"drafter": SPELLED}))
    rounded = LLM(str(default_model), quant="int8", drafter="auto", threads=1, max_model_len=256)
    assert rounded.profile is not None
    assert rounded.drafter_spec.text() == SPELLED
    assert LLM(str(default_model), threads=1, max_model_len=256).profile is None, "another model"
