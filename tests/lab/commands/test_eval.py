"""`forerun eval` and its second words, as a user meets them."""

from __future__ import annotations

import json

import pytest

from tests.cli.helpers import the_json

TEXT = "The sea is calm tonight. The tide is full, the moon lies fair upon the straits. " * 4


@pytest.fixture
def forerun(forerun, default_model):
    """Run a command in this process, on the default model if none is named: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        on_model = () if "-m" in arguments else ("-m", default_model, "-t", 1)
        return forerun(*arguments, *(on_model if len(arguments) > 1 else ()))

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_eval_alone_lists_its_words(forerun):
    code, out, _ = forerun("eval")
    assert code == 0
    assert all(word in out for word in ("ppl", "fidelity"))


def test_ppl_ends_with_one_document_and_does_not_read_twice(forerun, text, tmp_path):
    sizes = ("--window", 32, "--limit-tokens", 60, "--out", tmp_path / "run.jsonl")
    code, out, _ = forerun("eval", "ppl", text, *sizes, "--json")
    document = the_json(out)
    assert code == 0
    assert 1 < document["ppl"] < 100
    expected = {"tokens": 59, "window": 32, "stride": 16, "limit_tokens": 60, "quant": "Q4_1"}
    assert expected.items() <= document.items()
    written = (tmp_path / "run.jsonl").read_text()
    code, out, _ = forerun("eval", "ppl", text, *sizes, "--json")
    assert the_json(out)["ppl"] == document["ppl"]
    assert (tmp_path / "run.jsonl").read_text() == written
    code, _, err = forerun("eval", "ppl", text, *sizes, "--stride", 8)
    assert code == 2
    assert "stride 16 there, 8 here" in err


@pytest.mark.slow
def test_native_and_torch_agree_closely(forerun, text):
    perplexities = [
        the_json(forerun("eval", "ppl", text, "--limit-tokens", 48, *fp32, "--json")[1])["ppl"]
        for fp32 in ((), ("--fp32",))
    ]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.03)


def test_ctrl_c_says_how_far_it_came(forerun, text, monkeypatch):
    from forerun.lab.eval import perplexity

    score, calls = perplexity._score, iter(range(100))

    def interrupted(*args):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return score(*args)

    monkeypatch.setattr(perplexity, "_score", interrupted)
    code, _, err = forerun("eval", "ppl", text, "--window", 16, "--limit-tokens", 60)
    assert code == 130
    assert "after 2 of 7 windows; give --out FILE" in err


def test_fidelity_compares_with_fp32_on_texts_of_ones_own(forerun, text, tmp_path):
    sizes = ("--limit-tokens", 24, "--window", 16, "--peers-dir", tmp_path)
    code, out, _ = forerun("eval", "fidelity", "--text", text, *sizes, "--json")
    assert code == 0
    document = json.loads(out)
    exact, ours = document["rows"]
    assert (exact["system"], ours["system"]) == ("fp32 (torch)", "forerun")
    assert (exact["kl"], exact["agreement"]) == (0, 1)
    assert 0 < ours["kl"] < 0.05
    assert ours["agreement"] > 0.8
    assert 1 < ours["ppl"] < 2 * exact["ppl"]
    assert document["tokens"] == 15 + 7
    code, out, _ = forerun("eval", "fidelity", "--text", text, *sizes, "--json", "--kv", "int4")
    rounded = json.loads(out)
    assert rounded["kv"] == "int4"
    assert rounded["rows"][0] == exact, "the reference's keys and values are not rounded"
    assert rounded["rows"][1]["kl"] > 2 * ours["kl"]
    code, _, err = forerun("eval", "fidelity", "--text", tmp_path / "none.txt", *sizes)
    assert code == 2
    assert "none.txt" in err


def test_a_peer_that_does_not_start_is_left_out(forerun, text, tiny_gguf, tmp_path):
    home = tmp_path / "llama.cpp"
    (home / "bin").mkdir(parents=True)
    python = home / "bin" / "python"
    python.write_text("#!/bin/sh\necho broken library >&2; exit 3\n")
    python.chmod(0o755)
    (home / "requirements.txt").touch()
    sizes = ("--limit-tokens", 8, "--peers-dir", tmp_path, "-m", tiny_gguf)
    code, out, err = forerun("eval", "fidelity", "--text", text, *sizes)
    assert code == 0
    assert "llama.cpp is left out" in err
    assert "broken library" in err
    assert "same likeliest token" in out
