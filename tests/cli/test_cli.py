"""The command line as a user meets it: answers, figures, and one line for every mistake."""

from __future__ import annotations

import pytest

from forerun.decoding.verify import _Walk
from tests.cli.helpers import the_json
from tests.mutants import accepting_everything

SHORT = ["-n", "12", "-c", "256"]


@pytest.fixture
def model(default_model) -> list[str]:
    return ["-m", str(default_model)]


def test_generate_prints_the_text_or_one_document_with_it(forerun, model):
    command = ("generate", "Say the word yes.", *model, *SHORT, "--temp", 0)
    code, text, _ = forerun(*command)
    assert code == 0
    code, out, err = forerun(*command, "--json")
    document = the_json(out)
    assert code == 0
    assert document["text"] == text.removesuffix("\n")
    assert document["tokens"] == len(document["token_ids"]) <= 12
    assert document["drafter"] == "mlp_speculator++recycling"
    assert "tok/s" in err
    for key in ("model", "seconds", "tok_s", "tau", "acceptance_rate", "acceptance_by_depth"):
        assert key in document
    for key in ("draft_ms", "verify_ms", "ttft_ms", "peak_rss_mb", "threads", "finish_reason"):
        assert key in document


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


def test_verify_says_no_when_acceptance_is_broken(forerun, model, monkeypatch):
    monkeypatch.setattr(_Walk, "descend", accepting_everything(_Walk.descend))
    code, out, _ = forerun(
        "verify", *model, "-d", "prompt_lookup", "--limit", "1", "-n", "24", "--json"
    )
    assert code == 1
    assert the_json(out)["identical"] is False
    _, out, _ = forerun("verify", *model, "-d", "prompt_lookup", "--limit", "1", "-n", "24")
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


def test_models_lists_the_default_one(forerun):
    code, out, _ = forerun("models", "--json")
    assert code == 0
    assert "smollm2-135m-instruct" in [row["name"] for row in the_json(out)["models"]]


def test_models_shows_and_clears_packed_weights(forerun, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    forerun("generate", "Hi", *model, "-n", "1", "-c", "64", "--no-weight-cache")
    assert the_json(forerun("models", "--json")[1])["packed"]["files"] == 0
    forerun("generate", "Hi", *model, "-n", "1", "-c", "64")
    taken = the_json(forerun("models", "--json")[1])["packed"]
    assert taken["files"] == 1
    assert taken["nbytes"] > 90e6
    _, out, err = forerun("models", "--clear-cache")
    assert "MB of packed copies" in err
    assert "0 B" in out
    assert list((tmp_path / "packed").glob("*.packed")) == []


def test_a_rounded_head_of_the_same_file_drafts_for_it(forerun, model):
    drafter = ["-d", "draft_model:model=self,head_bits=4,num_draft=3"]
    code, out, _ = forerun("verify", *model, *drafter, "--limit", "1", "-n", "24", "--json")
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


def test_a_file_that_is_no_model_is_answered_in_one_line(forerun, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    code, _, err = forerun("generate", "hi", "-m", str(path))
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_version_is_printed_alone(forerun):
    import forerun as package

    assert forerun("--version") == (0, f"forerun {package.__version__}\n", "")


def test_what_is_lost_without_the_native_kernels_is_said(forerun, tiny_gguf, monkeypatch):
    from forerun.model.kernels import native

    monkeypatch.setattr(native, "reason", lambda: "it was not built")
    code, out, err = forerun("generate", "Hi", "--raw", "-m", tiny_gguf, "-n", "4", "-c", "64")
    assert code == 0, err
    assert out.strip()
    assert "native kernels: no (it was not built)" in err
