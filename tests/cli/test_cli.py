"""The command line as a user meets it: answers, figures, and one line for every mistake."""

from __future__ import annotations

import json

import pytest

from tests.cli.helpers import the_json
from tests.mutants import accepting_everything


@pytest.fixture
def model(default_model) -> list[str]:
    return ["-m", str(default_model)]


def test_verify_says_yes_and_counts(forerun, model):
    code, out, _ = forerun(
        "verify",
        *model,
        "-d",
        "prompt_lookup",
        "--limit",
        "2",
        "--batch",
        "2",
        "-n",
        "24",
        "--json",
    )
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["drafted"] == document["accepted"] + document["rejected"]
    assert document["accepted"] > 0
    assert document["rejected"] > 0


@pytest.mark.parametrize("drafter", ["prompt_lookup", "draft_model:model=self,head_bits=4"])
def test_verify_compares_sampled_tokens_one_by_one(forerun, model, drafter):
    sampled = ("--temperature", "1", "--seed", "7", "--top-p", "0.95", "--limit", "2", "-n", "24")
    code, out, _ = forerun("verify", *model, "-d", drafter, *sampled, "--json")
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["accepted"] > 0
    assert document["rejected"] > 0


def test_verify_needs_one_seed_for_both_ways(forerun, model):
    code, _, err = forerun("verify", *model, "--seed", "-1")
    assert code == 2
    assert "--seed -1 draws another seed each time" in err


def test_verify_completes_prompts_as_they_are_without_a_chat_template(forerun, tiny_gguf, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"turns": [turn]}) for turn in ("hello", "12 wo 12")))
    model = ["-m", tiny_gguf, "-d", "suffix", "--prompts", prompts]
    code, out, _ = forerun("verify", *model, "--batch", 2, "-n", 24, "--json")
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["tokens"] > 0


def test_verify_says_no_when_acceptance_is_broken(forerun, model, monkeypatch):
    monkeypatch.setattr("forerun.engine.engine.verify", accepting_everything)
    code, out, _ = forerun(
        "verify", *model, "-d", "prompt_lookup", "--limit", "4", "-n", "24", "--json"
    )
    assert code == 1
    assert the_json(out)["identical"] is False
    _, out, _ = forerun("verify", *model, "-d", "prompt_lookup", "--limit", "4", "-n", "24")
    assert "NO, from " in out


def test_check_knows_a_fitting_pair(forerun, model):
    code, out, _ = forerun("check", model[1], model[1], "--json")
    document = the_json(out)
    assert code == 0
    assert document["compatible"] is True
    assert document["cost"] == 1.0
    assert set(document["break_even_acceptance"].values()) == {None}, (
        "a draft as dear as the target"
    )


def test_check_knows_what_rounding_saves(forerun, model):
    rounded = [*model[1:], *model[1:], "--draft-quant", "int4", "--json"]
    document = the_json(forerun("check", *rounded)[1])
    assert document["cost"] == 1.0, "a file of 4 and 8 bits has no more to give"
    code, _, err = forerun("check", *model[1:], *model[1:], "--quant", "int5")
    assert code == 2
    assert "unknown quantization 'int5'" in err


def test_a_rounded_head_of_the_same_file_drafts_for_it(forerun, model):
    drafter = ["-d", "draft_model:model=self,head_bits=4,num_draft=3"]
    code, out, _ = forerun("verify", *model, *drafter, "--limit", "4", "-n", "24", "--json")
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["tau"] > 2


def test_ctrl_c_keeps_what_was_generated(forerun, model, monkeypatch):
    from forerun.engine.engine import Engine

    step = Engine.step
    steps = iter(range(100))

    def interrupted(self):
        if next(steps) == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    code, out, err = forerun("generate", "Tell me a story.", *model, "-d", "none", "--json")
    document = the_json(out)
    assert code == 130
    assert document["finish_reason"] == "abort"
    assert 0 < document["tokens"] <= 5
    assert document["text"]
    assert "Traceback" not in err


def test_what_is_lost_without_the_native_kernels_is_said(forerun, tiny_gguf, monkeypatch):
    from forerun.model.kernels import native

    monkeypatch.setattr(native, "reason", lambda: "it was not built")
    code, out, err = forerun("generate", "Hi", "--raw", "-m", tiny_gguf, "-n", "4", "-c", "64")
    assert code == 0, err
    assert out.strip()
    assert "native kernels: no (it was not built)" in err
