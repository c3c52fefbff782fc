"""What happens before a request is queued, and while its grammar is compiled: others go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.grammar import Compiling, GrammarState
from forerun.engine.loop import Request
from tests.engine.harness import GREEDY
from tests.engine.loops import PROMPTS, WAIT_S, Form, is_idle


@pytest.mark.parametrize("slow", ["grammars", "encode"])
def test_others_step_while_a_request_is_prepared(loop, answers, slow):
    """A schema may take a second to compile, and a long prediction to encode."""
    has_begun, is_over, waits = threading.Event(), threading.Event(), []

    def takes_long(text: object) -> object:
        has_begun.set()
        waits.append(is_over.wait(WAIT_S))
        return Form(loop.engine.model.config.vocab_size, 10**6) if slow == "grammars" else [1, 2]

    setattr(loop.engine.intake, slow, takes_long)
    form, text = StructuredOutputsParams(regex="a"), "one two"
    params = replace(
        GREEDY, n=3, **{"structured_outputs": form} if slow == "grammars" else {"prediction": text}
    )
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(loop.submit, PROMPTS[0], params)
        assert has_begun.wait(WAIT_S)
        other = loop.submit(PROMPTS[1], GREEDY)
        other.wait()
        is_over.set()
        handle = submitted.result(WAIT_S)
    assert waits == [True], "once for all completions"
    assert other.runs[0].seq.generated == answers[1]
    handle.wait()
    assert [run.seq.generated for run in handle.runs] == [answers[0]] * 3


def asks_for_a_grammar_in_the_making(loop) -> tuple[Request, Future[GrammarState]]:
    """A request whose grammar is compiled by nobody, and what stands for that."""
    compiled = Future[GrammarState]()
    loop.engine.intake.grammars = lambda wanted: Compiling(compiled, lambda state: state)
    form = StructuredOutputsParams(regex="a")
    return loop.submit(PROMPTS[0], replace(GREEDY, n=2, structured_outputs=form)), compiled


def test_a_prompt_is_read_while_its_grammar_is_compiled(loop, answers):
    handle, compiled = asks_for_a_grammar_in_the_making(loop)
    other = loop.submit(PROMPTS[1], GREEDY)
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    for run in handle.runs:
        assert loop.engine.num_read(run.seq) == len(PROMPTS[0]) - 1
        assert not run.seq.generated
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.wait)
        third = loop.submit(PROMPTS[2], GREEDY)  # nobody is kept out by who waits
        third.wait()
        compiled.set_result(Form(loop.engine.model.config.vocab_size, 10**6))
        waiting.result(WAIT_S)
    assert third.runs[0].seq.generated == answers[2]
    assert [run.seq.generated for run in handle.runs] == [answers[0]] * 2
    for run in handle.runs:
        assert run.stats.drafted > run.stats.accepted > 0


@pytest.mark.parametrize("wait", [Request.wait, Request.wait_for_grammar])
def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone(loop, answers, wait):
    handle, compiled = asks_for_a_grammar_in_the_making(loop)
    other = loop.submit(PROMPTS[1], GREEDY)
    compiled.set_exception(RequestError("regex cannot be used: no"))
    with pytest.raises(RequestError, match="regex cannot be used: no"):
        wait(handle)
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert handle.is_finished
    assert is_idle(loop)


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled(loop):
    handle, _ = asks_for_a_grammar_in_the_making(loop)
    loop.step()
    handle.cancel()
    assert handle.wait_for_grammar().output().outputs[0].finish_reason == "abort"
    assert is_idle(loop)


def test_the_time_to_the_first_token_begins_with_the_request(loop, monkeypatch):
    """Grammar tables and the encoding of a prediction are part of it."""
    monkeypatch.setattr(loop.engine.intake, "encode", lambda text: time.sleep(0.3) or [1])
    handle = loop.submit(PROMPTS[0], replace(GREEDY, prediction="one"))
    handle.wait()
    assert handle.output().outputs[0].ttft_s >= 0.3


@pytest.mark.parametrize("wrong", [24, -1, 10**30, 1.5, "a", None])
@pytest.mark.parametrize("field", ["prediction", "stop_token_ids"])
def test_ids_out_of_the_vocabulary_are_refused_where_they_enter(loop, answers, field, wrong):
    params = replace(GREEDY)
    setattr(params, field, (*answers[0][:4], wrong))
    innocent = loop.submit(PROMPTS[1], GREEDY)
    with pytest.raises(RequestError, match=rf"is not in the vocabulary of 24|{field} must be"):
        loop.submit(PROMPTS[0], params)
    innocent.wait()
    assert innocent.runs[0].seq.generated == answers[1]
    assert is_idle(loop)
