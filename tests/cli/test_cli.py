"""The command line as a user meets it: answers, figures, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.cli.help import next_steps
from tests.cli.helpers import FEW, the_json
from tests.mutants import accepting_everything

VERIFY = f"forerun verify --prompts {FEW} -n 24 --json"
SAMPLED = "--temperature 1 --seed 7 --top-p 0.95 --limit 2"


@pytest.mark.parametrize(
    "options",
    [
        "-d prompt_lookup --limit 2 --batch 2",
        f"-d prompt_lookup {SAMPLED}",
        f"-d draft_model:model=self,head_bits=4 {SAMPLED}",
    ],
)
def test_verify_says_yes_to_greedy_and_sampled_tokens_and_counts(shell, options):
    code, out, _ = shell(f"{VERIFY} {options}")
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["drafted"] == document["accepted"] + document["rejected"]
    assert document["accepted"] > 0
    assert document["rejected"] > 0


def test_verify_of_nothing_drafted_is_no_success(shell):
    """One token is not drafted; of the drafter none nothing is expected."""
    for options, wanted in (("-d suffix", 1), ("-d none", 0)):
        code, out, err = shell(
            f"forerun verify --prompts {FEW} -n 1 --limit 1 -c 512 {options} --json"
        )
        assert code == wanted
        assert ("nothing was drafted" in err) == (wanted == 1)
        assert the_json(out)["identical"]


def test_verify_needs_one_seed_for_both_ways(shell):
    code, _, err = shell("forerun verify --seed -1")
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


def test_verify_says_no_when_acceptance_is_broken(shell, monkeypatch):
    monkeypatch.setattr("forerun.engine.engine.verify", accepting_everything)
    code, out, _ = shell(f"{VERIFY} -d prompt_lookup --limit 2")
    assert code == 1
    assert the_json(out)["identical"] is False
    table = VERIFY.removesuffix("--json")
    assert "NO, from " in shell(f"{table} -d prompt_lookup --limit 2")[1]


PAIR = "forerun check smollm2-135m-instruct smollm2-135m-instruct"


def test_check_knows_a_fitting_pair(shell):
    code, out, _ = shell(f"{PAIR} --json")
    document = the_json(out)
    assert code == 0
    assert document["compatible"] is True
    assert document["cost"] == 1.0
    assert {*document["break_even_acceptance"].values()} == {None}, "a draft as dear as the target"


def test_check_knows_what_rounding_saves(shell):
    document = the_json(shell(f"{PAIR} --draft-quant int4 --json")[1])
    assert document["cost"] == 1.0, "a file of 4 and 8 bits has no more to give"
    code, _, err = shell(f"{PAIR} --quant int5")
    assert code == 2
    assert "unknown quantization 'int5'" in err


@pytest.mark.slow  # that it is lossless is shown by sampled tokens above
def test_a_rounded_head_of_the_same_file_drafts_for_it(shell):
    options = "-d draft_model:model=self,head_bits=4,num_draft=3 --limit 4"
    code, out, _ = shell(f"{VERIFY} {options}")
    document = the_json(out)
    assert code == 0
    assert document["identical"] is True
    assert document["tau"] > 2


def test_ctrl_c_keeps_what_was_generated(shell, monkeypatch):
    from forerun.engine.engine import Engine

    step = Engine.step
    steps = iter(range(100))

    def interrupted(self):
        if next(steps) == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    code, out, err = shell('forerun generate "Tell me a story." -d none --json')
    document = the_json(out)
    assert code == 130
    assert document["finish_reason"] == "abort"
    assert 0 < document["tokens"] <= 5
    assert document["text"]
    assert "Traceback" not in err


def test_without_the_native_kernels_it_is_said_what_to_do(forerun, tiny_gguf, monkeypatch):
    from forerun.model.kernels import native

    monkeypatch.setattr(native, "reason", lambda: "it was not built")
    code, out, err = forerun("generate", "Hi", "--raw", "-m", tiny_gguf, "-n", "4", "-c", "64")
    assert (code, out) == (2, "")
    assert "the native kernels are not there (it was not built): install a wheel" in err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "qwen"], "forerun chat -m MODEL"),
        (["list"], "forerun models"),
        (["ps"], "forerun models"),
        (["perplexity", "-f", "a.txt"], "forerun eval ppl -f a.txt"),
        (["help", "chat"], "forerun chat --help"),
        (["-m", "x.gguf", "-p", "hi"], "forerun generate -m x.gguf -p hi"),
        (["What is a prime?"], "forerun generate 'What is a prime?'"),
        (["a.gguf"], "forerun chat -m a.gguf"),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_the_command_meant(forerun, words, meant):
    code, out, err = forerun(*words)
    assert (code, out) == (2, "")
    assert f"did you mean {meant}?" in err


def test_no_habit_hides_a_command():
    from forerun.cli.main import GROUPS, HABITS

    assert HABITS.keys().isdisjoint({name for names in GROUPS.values() for name in names})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full disk")
@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        ("> /dev/full", "error: the output cannot be written: No space left on device\n"),
        (">&-", "error: stdout is closed: the output cannot be written\n"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(redirect, message):
    command = f"{sys.executable} -m forerun drafters {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("columns", [34, 44])
def test_the_headings_of_a_narrow_table_stay_whole(shell, columns):
    _, out, _ = shell("forerun models", columns=columns)
    heading, *lines = out.splitlines()
    assert heading.split() == ["model", "here", "size", "licence"]
    assert max(map(len, map(str.rstrip, lines))) <= columns


def test_without_a_command_it_says_what_to_try_next(shell) -> None:
    code, out, _ = shell("forerun")
    lines = out.splitlines()[-3:]
    assert code == 0
    assert [line.split()[:2] for line in lines] == [
        ["forerun", word] for word in ("chat", "chat", "serve")
    ]
    assert max(map(len, lines)) <= 60


def test_commands_to_try_can_be_typed_where_path_lacks_forerun(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/forerun")])
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert next_steps().startswith(".venv/bin/forerun chat ")


def test_help_of_serve_begins_with_model_host_and_port(shell) -> None:
    out = shell("forerun serve --help")[1].partition("Arguments:")[2]
    first = [line.split()[0] for line in out.splitlines() if line.lstrip().startswith(("M", "--"))]
    assert first[:3] == ["MODEL...", "--host", "--port"]


def test_an_option_with_two_letters_swapped_is_known(forerun):
    code, _, err = forerun("serve", "--prot", "1")
    assert code == 2
    assert "did you mean --port?" in err
