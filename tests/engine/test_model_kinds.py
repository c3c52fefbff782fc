"""Drafts change no token of models that are not llamas: windows, sinks, experts, shared keys, norms elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from forerun import LLM, SamplingParams
from forerun.drafters.base.spec import DrafterSpec
from forerun.model.kernels import native
from forerun.model.loader import blank_model, load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.engine.kinds import KINDS, TEXTS, write

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")

DRAFTERS = (
    "recycling",
    "suffix",
    "draft_model:model=self,quant=int4,head_bits=4,num_draft=4",  # rounded, so that it errs
    "prompt_lookup",
)
OFTEN = ("gemma4",)
"""The kind that shows the most; the others are slow tests (their rows: `tests/model/test_row_law.py`)."""
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.8, top_k=12, seed=5)
SHARED = 70
"""Tokens that prompts have in common: more than a block of keys."""


@pytest.fixture(scope="module")
def files(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes each kind's file once."""
    folder = tmp_path_factory.mktemp("kinds")
    return cache(lambda kind: write(kind, default_model, folder / f"{kind}.gguf"))


@pytest.fixture(
    scope="module",
    params=[
        kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS
    ],
)
def llm(request: pytest.FixtureRequest, files: Callable[[str], Path]) -> LLM:
    """A kind of model without drafts."""
    return opened(files(request.param))


def opened(path: Path, **options: Any) -> LLM:
    return LLM(str(path), drafter="none", max_model_len=256, max_num_seqs=3, **options)


def engine(llm: LLM, drafter: str, **changes: Any) -> LLM:
    """The same weights with a drafter that drafts in full."""
    return llm._with(DrafterSpec.of(drafter), controller=False, **changes)


def prompts(llm: LLM) -> list[list[int]]:
    """Three that share their first tokens."""
    texts = [llm.encode(text) for text in TEXTS]
    shared = ([token for text in texts for token in text] * 3)[:SHARED]
    return [shared + text for text in texts]


def alone(llm: LLM, params: SamplingParams, **changes: Any) -> list[list[int]]:
    """Plain decoding of each prompt by itself, from its first token on."""
    plain = llm._with(DrafterSpec.of("none"), max_num_seqs=1, **changes)
    plain.engine.scheduler.reuse = False
    return [[*plain.generate(prompt, params)[0].outputs[0].token_ids] for prompt in prompts(llm)]


def joined(llm: LLM, params: SamplingParams) -> list[list[int]]:
    """The same in one engine: they join at different steps, and the first is preempted on its way."""
    handles = []
    for prompt in prompts(llm):
        handles.append(llm.submit(prompt, params))
        for _ in range(3):
            llm.loop.step()
    llm.engine.preempt(llm.engine.scheduler.running[0].id)
    while llm.engine.has_work:
        llm.loop.step()
    assert llm.engine.scheduler.memory_steps["preempted"] == 1
    assert llm.engine.scheduler.num_reused > 0
    return [[*handle.output().outputs[0].token_ids] for handle in handles]


@pytest.mark.parametrize("kv", ["fp16", pytest.param("int8", marks=pytest.mark.slow)])
def test_drafts_neighbours_and_a_preemption_change_no_token(llm: LLM, kv: str) -> None:
    seen: dict[str, Counter[str]] = {}
    words: set[int] = set()
    for params in (GREEDY, SAMPLED):
        expected = alone(llm, params, kv=kv)
        words.update(token for answer in expected for token in answer)
        for drafter in DRAFTERS:
            drafting = engine(llm, drafter, kv=kv)
            assert joined(drafting, params) == expected, (drafter, params)
            stats = drafting.engine.stats
            found = {"accepted": stats.accepted, "rejected": stats.rejected}
            seen.setdefault(drafter, Counter()).update(found)
    assert len(words) > 7, "text says nothing"
    for drafter, counts in seen.items():
        assert counts["accepted"], drafter
        assert counts["rejected"], drafter


@pytest.mark.parametrize(
    "kind",
    ["gpt_oss", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gemma4", "gemma4_moe"))],
)
def test_eight_bit_keys_and_two_threads_say_what_one_says(
    kind: str, files: Callable[[str], Path]
) -> None:
    answers = []
    for threads in (1, 2):
        llm = opened(files(kind), threads=threads, kv="int8")
        answers.append(joined(engine(llm, "recycling"), SAMPLED))
        assert alone(llm, SAMPLED) == answers[-1]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "kind",
    [each if each == "gpt_oss" else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
@pytest.mark.parametrize("quant", ["none", "int4"])
def test_a_model_takes_what_is_planned_for_it(
    kind: str, quant: Literal["none", "int4"], files: Callable[[str], Path]
) -> None:
    file = open_checkpoint(files(kind))
    assert load_model(file, quant=quant).nbytes() == blank_model(file, quant=quant).nbytes()
