"""Scores of tasks; above all, that drafting moves none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.engine.outputs import CompletionOutput
from forerun.engine.stats import SpecStats
from forerun.lab.eval import scores
from forerun.lab.eval.scores import GradedAnswer
from forerun.lab.eval.tasks import gsm8k
from forerun.lab.store import Store
from forerun.llm import LLM

QUESTIONS = (
    ("Tom has 2 apples and buys 3 more. How many apples does he have?", 5),
    ("A pen costs 4 dollars. What do 3 pens cost in dollars?", 12),
)
PROMPTS = [
    TaskPrompt(str(i), "math", (text,), f"so #### {answer}")
    for i, (text, answer) in enumerate(QUESTIONS)
]


@pytest.fixture(scope="module")
def llm(default_model):
    return LLM(
        str(default_model), drafter="none", max_num_seqs=2, max_model_len=256, controller=False
    )


def graded(llm: LLM, batch: int = 1) -> list[GradedAnswer]:
    def ask(questions):
        prompts = [[{"role": "user", "content": question}] for question in questions]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=48))
        return [output.outputs[0] for output in outputs]

    return list(scores.grade(gsm8k, PROMPTS, ask, Store({}), batch=batch))


def said(answers: list[GradedAnswer]) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(answer.text, answer.token_ids, answer.is_right) for answer in answers]


def test_drafting_moves_no_score_and_no_word(llm):
    plain = graded(llm)
    assert {answer.is_right for answer in plain} == {True, False}, "the score could move either way"
    for drafter, batch in (("suffix", 1), ("prompt_lookup", 2)):
        drafted = graded(llm.with_drafter(drafter, num_draft=4), batch)
        assert said(drafted) == said(plain)
        figures = scores.document(drafted)
        assert figures["accepted"] > 0
        assert figures["rejected"] > 0
        assert figures["score"] == scores.document(plain)["score"]


def echo(questions):
    return [
        CompletionOutput(
            0, text.split()[0], (1, 2), None, None, SpecStats(passes=1, emitted=2), None
        )
        for text in questions
    ]


def test_an_interrupted_task_goes_on_and_asks_nothing_twice(tmp_path):
    asked = []

    def ask(questions):
        asked.append(len(questions))
        return echo(questions)

    prompts = [TaskPrompt(str(i), "", (f"{i} ",), f"#### {i % 2}") for i in range(7)]
    whole = list(scores.grade(gsm8k, prompts, echo, Store({})))
    steps = scores.grade(gsm8k, prompts, ask, Store({}, tmp_path / "run.jsonl"), batch=2)
    for _ in range(3):
        next(steps)
    again = list(scores.grade(gsm8k, prompts, ask, Store({}, tmp_path / "run.jsonl"), batch=3))
    assert said(again) == said(whole)
    assert asked == [2, 2, 2, 1], "two and two at first; then what the threes still lack"
    assert scores.document(again)["right"] == 2


@given(st.integers(1, 300), st.data())
def test_the_interval_is_wilsons(num, data):
    right = data.draw(st.integers(0, num))
    wanted = stats.binomtest(right, num).proportion_ci(0.95, method="wilson")
    assert scores.interval(right, num) == pytest.approx((wanted.low, wanted.high), abs=1e-4)
