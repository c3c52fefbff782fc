"""The engine's own work in a step: phases add up, answers are replayed as they were, nothing is left wrapped."""

from __future__ import annotations

import pytest

from forerun import LLM
from forerun.core.errors import ConfigError, ForerunError
from forerun.core.types import TaskPrompt
from forerun.engine import engine
from forerun.engine.sequence import SequenceStep
from forerun.lab.bench import host

PROMPTS = [TaskPrompt(str(i), "", (f"Count from {i} to thirty.",)) for i in range(2)]


@pytest.fixture(scope="module")
def llm(default_model) -> LLM:
    return LLM(str(default_model), threads=1, max_num_seqs=2, max_model_len=512)


def test_rows_say_what_each_phase_takes(llm):
    before = engine.pack, SequenceStep.emit
    rows = [*host.measure(llm, PROMPTS, [1, 2], 12, 1)]
    assert [(row["kind"], row["num_seqs"]) for row in rows] == [
        (kind, size) for kind in host.KINDS for size in (1, 2)
    ]
    for row in rows:
        assert row["us"] == pytest.approx(sum(row["phases"].values()), abs=2)
        assert row["rows"] >= row["num_seqs"] <= row["tokens"]
    assert (engine.pack, SequenceStep.emit) == before


def test_an_answer_that_is_another_is_an_error(llm):
    params, probes = host.KINDS["greedy"], host.Probes()
    first, second = host.answered(llm, PROMPTS, params, 8)
    wrong = first._replace(tokens=[*first.tokens[:-1], first.tokens[-1] ^ 1])
    fresh = llm.with_drafter("none")
    with host._replayed(fresh, host.Replay(fresh, [first, second], probes), probes):
        assert [*host._answer(fresh, probes, params, [first, second], reads=True)]
        with pytest.raises(ForerunError, match="differs"):
            [*host._answer(fresh, probes, params, [wrong], reads=False)]


def test_probes_take_off_what_they_take():
    probes = host.Probes()
    inner = probes.timed(lambda: None, "inner")
    probes.timed(lambda: [inner() for _ in range(1000)], "outer")()
    assert abs(probes.now.spent["inner"]) < 3e6, "three microseconds a call"


def test_too_few_prompts_are_refused(llm):
    with pytest.raises(ConfigError, match="as many prompts"):
        next(host.measure(llm, PROMPTS, [3], 8, 1))
