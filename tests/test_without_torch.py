"""What is said and done where torch is not installed, and where the native kernels were not built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

RUN = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # importing them fails now
from forerun.cli.main import _run
for arguments in json.loads(sys.argv[2]):
    print("forerun", *arguments, file=sys.stderr, flush=True)
    print("ended with", _run(arguments), file=sys.stderr, flush=True)
"""
MODEL = __file__  # which is not a model: it is not opened
TORCH, KERNELS = "torch", "forerun._native"
GENERATE = ("generate", "x", "-m", MODEL)


def run(hidden: Sequence[str], *commands: Sequence[str], **environment: str) -> list[str]:
    """What each of the commands says on stderr, of one process in which modules cannot be imported."""
    given = json.dumps(hidden), json.dumps(commands)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *given],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return [text.partition("\n")[2] for text in done.stderr.split("\nforerun ")]


ASKS_TORCH = (
    (*GENERATE, "--device", "cuda"),
    (*GENERATE, "--tensor-parallel-size", "2"),
    ("plan", "-m", MODEL, "--device", "cuda"),
    ("quantize", "-m", MODEL, "-o", "no-such-folder"),
    ("train", "drafter", "-m", MODEL),
    ("train", "draft-model", "-m", MODEL),
    ("eval", "fidelity", "-m", MODEL),
)


def test_without_torch_what_needs_it_names_the_extra_in_a_line() -> None:
    """Before a model is opened."""
    for command, said in zip(ASKS_TORCH, run([TORCH], *ASKS_TORCH), strict=True):
        line, code, *_ = said.splitlines()
        assert line.startswith("error: torch is not installed"), (command, said)
        assert "extra torch" in line
        assert "extra lab" in line
        assert code == "ended with 2"


@pytest.mark.slow
def test_what_readme_says_of_measuring_and_tuning_runs_without_torch(
    default_model: Path, tmp_path: Path
) -> None:
    few, run_file = str(Path(__file__).parent / "few.jsonl"), str(tmp_path / "run.jsonl")
    model = ("-m", str(default_model), "-t", "1", "-c", "256")
    asked = [
        ("bench", *model, "--task", few, "--limit", "1", "-n", "8", "--out", run_file),
        ("bench", "report", run_file, "--plots"),
        ("bench", "diff", run_file, run_file),
        ("verify", *model, "--limit", "1", "-n", "8"),
        ("eval", "ppl", few, *model[:4], "--window", "64", "--limit-tokens", "99"),
        ("bench", "share", "-m", str(default_model), "--out", str(tmp_path / "share.json")),
        ("tune", *model, "--prompts", few, "--tokens", "60", "--limit", "1", "-n", "8"),
    ]
    for text in run([TORCH], *asked, FORERUN_CACHE=str(tmp_path)):
        assert "ended with 0" in text, text
    assert [*tmp_path.glob("run*.svg")]


def test_without_kernels_the_remedy_is_named() -> None:
    (said,) = run([KERNELS], GENERATE)
    line, code, *_ = said.splitlines()
    assert "C++20 compiler" in line
    assert "wheel" in line
    assert code == "ended with 2"


@pytest.mark.slow
def test_all_drafters_answer_without_torch(tiny_gguf) -> None:
    model = ("-m", str(tiny_gguf), "-n", "4", "--raw")
    drafters = ["none", "lookahead", "auto", "recycling", "suffix", "draft_model:model=self"]
    drafters += [f"{network}:model=untrained" for network in ("mlp_speculator", "medusa", "eagle3")]
    asked = [("generate", "one two one two", *model, "-d", drafter) for drafter in drafters]
    for text in run([TORCH], *asked):
        assert "ended with 0" in text, text
