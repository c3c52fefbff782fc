"""Served by the GPU's kernels, interpreted here, a model answers what it answers on the CPU, drafted or not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forerun.core.params import SamplingParams
from forerun.engine import prefill
from forerun.engine.stats import SpecStats
from forerun.gpu import devices, load
from forerun.gpu.decoder import GpuDecoder
from forerun.lab.bench import kernels
from forerun.llm import LLM
from tests.gpu.oracle import DEVICE

PROMPTS = ["ababa", "xy"]
PARAMS = [
    SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=4, temperature=1.0, seed=3),
]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a card, which is the interpreter."""
    room = load.load
    monkeypatch.setattr(
        load, "load", lambda *given, device, **named: room(*given, device=DEVICE, **named)
    )
    monkeypatch.setattr(devices, "absent", lambda name: None)
    monkeypatch.setattr(devices, "free_nbytes", lambda name: 1 << 33)


SIZES = {"max_model_len": 64, "max_num_seqs": 2, "threads": 1, "kv": "int8"}


def answers(
    model: Path, params: list[SamplingParams] = PARAMS, **options: object
) -> tuple[list[tuple[int, ...]], SpecStats]:
    llm = LLM(str(model), controller=False, **SIZES, **options)
    found = [tuple(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, params)]
    return found, llm.engine.stats


def drafts(model: Path, **options: object) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The trees that a drafter proposed, and then the answers."""
    llm = LLM(str(model), controller=False, **SIZES, **options)
    drafter, found = llm.engine.proposer.drafter, []
    propose = drafter.propose

    def recorded(seqs, budgets):
        trees = propose(seqs, budgets)
        found.extend((tree.tokens, tree.parents) for tree in trees)
        return trees

    drafter.propose = recorded
    texts = [(tuple(each.outputs[0].token_ids), ()) for each in llm.generate(PROMPTS, PARAMS)]
    return [*found, *texts]


def test_drafting_on_a_card_answers_as_the_cpu_alone_does(card, tiny_gguf: Path) -> None:
    drafted, stats = answers(tiny_gguf, device="cuda", drafter="lookahead")
    assert drafted == answers(tiny_gguf, drafter="none")[0]
    assert 0 < stats.accepted < stats.drafted


def crossed(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """By pass from now on: shapes of what comes from the device, and of what is read of it otherwise."""
    found, forward = [], GpuDecoder.forward

    def begun(*given, **named):
        found.append([])
        return forward(*given, **named)

    def noted(name: str):
        call = getattr(torch.Tensor, name)

        def copied(self, *given, **named):
            if sys._getframe(1).f_globals["__name__"].startswith("forerun.gpu"):
                found[-1].append(tuple(self.shape))
            return call(self, *given, **named)

        return copied

    monkeypatch.setattr(GpuDecoder, "forward", begun)
    for name in ("cpu", "item", "tolist", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, noted(name))
    return found


@pytest.mark.parametrize(
    ("params", "drafter", "num_chosen"),
    [
        (PARAMS[:1] * 2, "lookahead", 1),
        (PARAMS, "lookahead", 2),
        (PARAMS[1:] * 2, "recycling:num_draft=3,min_chance=0.01", 8),
    ],
    ids=["greedy", "both", "sampled"],
)
def test_a_step_waits_once_and_then_for_tokens_alone(
    card, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, params, drafter: str, num_chosen: int
) -> None:
    """Of a row 8 bytes for the likeliest token and the drawn one; recycling reads six and the normaliser besides."""
    expected = answers(tiny_gguf, params, drafter="none")[0]
    found = crossed(monkeypatch)
    drafted, stats = answers(tiny_gguf, params, device="cuda", drafter=drafter)
    assert drafted == expected
    assert stats.drafted or "recycling" in drafter
    assert all(len(step) == 1 for step in found)
    assert {(*of_a_row,) for ((_, *of_a_row),) in found} == {(num_chosen, 2)}


def test_states_that_a_drafter_asks_for_come_behind_the_tokens(
    card, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = "medusa:model=untrained,num_draft=3,min_chance=0"
    found = crossed(monkeypatch)
    assert answers(tiny_gguf, PARAMS[:1] * 2, device="cuda", drafter=drafter)[1].drafted
    for tokens, states, *_ in found:
        assert tokens[1:] == (1, 2)
        assert (states[0], len(states)) == (1, 3)


def test_a_part_of_a_prompt_without_tokens_waits_for_one_number(
    card, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill.PrefillPace, "budget", lambda *given, **named: 2)
    llm, found = LLM(str(tiny_gguf), device="cuda", drafter="none", **SIZES), crossed(monkeypatch)
    llm.generate([{"prompt_token_ids": [1, 2, 3, 4, 5]}], PARAMS[0])
    assert found[:3] == [[(1, 1)], [(1, 1)], [(1, 1, 2)]]


def test_a_timed_pass_is_that_of_a_step(
    card, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = LLM(str(tiny_gguf), device="cuda", **SIZES).model, crossed(monkeypatch)
    cases = [kernels.Case(1, 4, 8), kernels.Case(1, 8, 0)]
    *_, timings = kernels.measure(model, cases, rounds=1, others={}, kv="fp16")
    assert 0 < timings.nbytes[4] <= model.nbytes()
    assert {shape for each in found for shape in each} == {(4, 1, 2), (1, 1, 2), ()}


@pytest.mark.parametrize("asked", [{"top_p": 0.9}, {"logprobs": 1}, {"presence_penalty": 0.5}])
def test_logits_leave_the_device_for_who_reads_them(
    card, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, float]
) -> None:
    params = [PARAMS[0], replace(PARAMS[1], max_tokens=2, **asked)]
    expected = answers(tiny_gguf, params, drafter="none")[0]
    vocab_size = LLM(str(tiny_gguf), **SIZES).model.config.vocab_size
    found = crossed(monkeypatch)
    assert answers(tiny_gguf, params, device="cuda", drafter="none")[0] == expected
    assert any(shape[-1] == vocab_size for step in found for shape in step)


@pytest.mark.parametrize(
    "name", ["medusa", "mlp_speculator", "eagle3", pytest.param("dflash", marks=pytest.mark.slow)]
)
def test_networks_draft_beside_a_card_what_they_draft_beside_the_cpu(
    card, tiny_gguf: Path, name: str
) -> None:
    drafter = f"{name}:model=untrained,num_draft=5,min_chance=0"
    found = drafts(tiny_gguf, device="cuda", drafter=drafter)
    assert found == drafts(tiny_gguf, drafter=drafter)
    assert sum(len(tokens) for tokens, _ in found[: -len(PROMPTS)]) > 10


def test_a_draft_model_and_its_cut_head_are_on_the_card_and_draft_what_they_draft_beside_the_cpu(
    card, tiny_gguf: Path
) -> None:
    drafter = f"draft_model:model={tiny_gguf},num_draft=5,num_steps=3,min_chance=0,draft_vocab=40"
    found = drafts(tiny_gguf, device="cuda", drafter=drafter)
    assert found == drafts(tiny_gguf, drafter=drafter)
    assert sum(len(tokens) for tokens, _ in found[: -len(PROMPTS)]) > 10
    llm = LLM(str(tiny_gguf), device="cuda", drafter=drafter, **SIZES)
    draft = llm.engine.proposer.drafter
    assert isinstance(draft.model, GpuDecoder)
    assert (
        0
        < draft.memory(0, 1).weights - draft.model.nbytes()
        < draft.model.head_of(None).nbytes() + 10000
    )


def test_a_receipt_of_the_cpu_is_that_of_the_card(
    card, forerun, tiny_gguf: Path, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("name", ["medusa", "mlp_speculator", "eagle3", "dflash"])
def test_a_plan_counts_what_a_network_has_on_the_card(
    card, forerun, tiny_gguf: Path, name: str
) -> None:
    drafter = f"{name}:model=untrained"
    asked = ("plan", "-m", tiny_gguf, "--device", "cuda", "-c", 64, "--json", "-d", drafter)
    code, out, said = forerun(*asked)
    assert code == 0, said
    document = json.loads(out.splitlines()[-1])
    network = LLM(str(tiny_gguf), device="cuda", drafter=drafter, **SIZES).engine.proposer.drafter
    assert document["components"]["drafter_weights"] == network.memory(0, 1).weights > 0
    assert document["device_bytes"] > network.memory(0, 1).weights


@pytest.mark.skipif(DEVICE != "cpu", reason="there is a card")
def test_without_a_card_it_is_planned_for_one_and_not_loaded(forerun, tiny_gguf: Path) -> None:
    asked = ("-m", tiny_gguf, "--device", "cuda", "-c", 64, "-d", "none")
    code, out, _ = forerun("plan", *asked, "--json")
    document = json.loads(out.splitlines()[-1])
    assert (code, 0 < document["device_bytes"] < document["total_bytes"]) == (0, True)
    assert "(no such GPU is here); the rest is on the host" in " ".join(
        forerun("plan", *asked)[1].split()
    )
    code, _, said = forerun("generate", "x", "--raw", *asked)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: this model cannot run on cuda: torch ")
    assert said.endswith("sees 0 CUDA devices; use --device cpu\n")
