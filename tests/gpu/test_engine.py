"""Served by the GPU's kernels, interpreted here, a model answers what it answers on the CPU, drafted or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core.params import SamplingParams
from forerun.gpu import devices, load
from forerun.llm import LLM
from tests.gpu.oracle import DEVICE

PROMPTS = ["ababa", "xy"]
PARAMS = [
    SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=4, temperature=1.0, seed=3),
]


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a card, which is the interpreter."""
    room = load.load
    monkeypatch.setattr(
        load, "load", lambda *given, device, **named: room(*given, device=DEVICE, **named)
    )
    monkeypatch.setattr(devices, "absent", lambda name: None)
    monkeypatch.setattr(devices, "free_nbytes", lambda name: 1 << 33)


def answers(model: Path, **options: object) -> list[tuple[int, ...]]:
    llm = LLM(str(model), max_model_len=64, max_num_seqs=2, threads=1, kv="int8", **options)
    return [tuple(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, PARAMS)]


def test_drafting_on_a_card_answers_as_the_cpu_alone_does(tiny_gguf: Path) -> None:
    drafted = answers(tiny_gguf, device="cuda", drafter="lookahead")
    assert drafted == answers(tiny_gguf, drafter="none")


def test_a_receipt_of_the_cpu_is_that_of_the_card(forerun, tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    (tmp_path / "prompts.txt").write_text("abab")
    asked = (
        "verify",
        "-m",
        tiny_gguf,
        "--prompts",
        tmp_path / "prompts.txt",
        *["-n", "3", "-c", "64", "-t", "1", "--kv", "int8"],
    )
    assert forerun(*asked, "-d", "none", "--receipt", path)[0] == 0
    code, _, said = forerun(*asked, "-d", "none", "--device", "cuda", "--against", path)
    assert (code, "1 of 1 identical to the receipt (made on cpu, " in said) == (0, True)
