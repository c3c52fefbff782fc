"""Errors: one that belongs to a request ends that request alone, one of the engine ends what runs."""

from __future__ import annotations

import math
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from forerun.core.batch import Segment
from forerun.core.errors import DeviceMemoryError, RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters import suffix
from forerun.drafters.base.contract import Target
from forerun.drafters.base.predicted import PredictedText
from forerun.engine.loop import EngineLoop, Request
from forerun.lab.torch.decoder import Decoder
from forerun.model.random_model import random_config
from tests.engine.harness import GREEDY, engine_for, plain
from tests.engine.loops import PROMPTS, WAIT_S, Form, failing, in_thread, is_idle, tokens
from tests.lab.torch.random_tensors import random_tensors


def test_an_error_in_a_step_reaches_every_request_and_the_next_ones_run(loop, answers):
    failing(loop, 4, RuntimeError("boom"))
    handles = [loop.submit(prompt, GREEDY) for prompt in PROMPTS]  # some still wait for a slot
    said: list[str] = []

    def wait(handle: Request) -> None:
        try:
            handle.wait()
        except RuntimeError as error:
            said.append(str(error))

    threads = [in_thread(lambda handle=handle: wait(handle)) for handle in handles]
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert said == ["boom"] * len(handles)
    assert is_idle(loop)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        handle = loop.submit(prompt, GREEDY)
        handle.wait()
        assert handle.runs[0].seq.generated == answer


@pytest.mark.parametrize("own", [{"temperature": 0}, {"temperature": 1}, {"top_p": 0.9}])
def test_logits_that_are_no_numbers_end_their_request_alone(own):
    params = replace(GREEDY, **{"temperature": 1, "seed": 3, **own})
    config = replace(random_config(vocab_size=200), tied_head=False)
    weights = random_tensors(3, config, sharpness=3.0)
    answers = plain(Decoder(config, weights), PROMPTS[:2], params)
    unused = min({*range(200)}.difference(*answers, *PROMPTS))
    weights["embed"][unused] = math.nan
    model = Decoder(config, weights)
    drafter = suffix.build(suffix.Options(), Target(model, None, 3, 256))
    loop = EngineLoop(engine_for(model, drafter, controller=True, max_num_seqs=3))
    lost = loop.submit([1, 2, unused], params)
    others = [loop.submit(prompt, params) for prompt in PROMPTS[:2]]
    with pytest.raises(RequestError, match="no token can be chosen: the model's logits"):
        lost.wait()
    for handle, answer in zip(others, answers, strict=True):
        handle.wait()
        assert handle.runs[0].seq.generated == answer
    assert is_idle(loop)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_request_that_bans_every_token_ends_alone(loop, answers, temperature):
    every = tuple(range(loop.engine.model.config.vocab_size))
    banned = SamplingParams(temperature=temperature, stop_token_ids=every, min_tokens=2)
    lost, other = loop.submit(PROMPTS[1], banned), loop.submit(PROMPTS[0], GREEDY)
    with pytest.raises(RequestError, match="or every token is banned"):
        lost.wait()
    other.wait()
    assert other.runs[0].seq.generated == answers[0]
    assert is_idle(loop)


def broken_once(call: Callable, at: int, error: BaseException | None = None) -> Callable:
    """The call, which raises at its `at`th time."""
    count = [0]

    def fails(*arguments):
        count[0] += 1
        if count[0] == at:
            raise error or ValueError("broken")
        return call(*arguments)

    return fails


class BrokenPrediction(PredictedText):
    def extend(self, *arguments):
        raise ValueError("broken")


def in_draft(loop, handle, monkeypatch):
    handle.runs[0].prediction = BrokenPrediction(())


def in_pack(loop, handle, monkeypatch):
    seq = handle.runs[0].seq

    def broken(slot, *others, **named):
        if slot == seq.slot and len(seq.generated) > 3:
            raise ValueError("broken")
        return Segment(slot, *others, **named)

    monkeypatch.setattr("forerun.engine.sequence.Segment", broken)


def in_grammar(loop, handle, monkeypatch):
    """In the cut of a draft, or in its verification."""
    run = handle.runs[0]
    form = Form(loop.engine.model.config.vocab_size, 40)
    run.pipeline = LogitsPipeline(GREEDY, PROMPTS[1], noise=run.seq.noise, grammar=form)


def in_text(loop, handle, monkeypatch):
    handle.runs[0].stops.push = broken_once(handle.runs[0].stops.push, 5)


def in_text_and_its_end(loop, handle, monkeypatch):
    in_text(loop, handle, monkeypatch)
    handle.runs[0].stops.close = broken_once(handle.runs[0].stops.close, 1)


def in_sink(loop, handle, monkeypatch):
    handle.sink = broken_once(handle.sink, 4)


@pytest.mark.parametrize(
    "broken", [in_draft, in_pack, in_grammar, in_text, in_text_and_its_end, in_sink]
)
def test_an_error_that_belongs_to_one_sequence_ends_that_one(loop, answers, broken, monkeypatch):
    lost = loop.submit(PROMPTS[1], GREEDY)
    events: list[Event] = []
    others = [loop.submit(prompt, GREEDY, events.append) for prompt in (PROMPTS[0], PROMPTS[2])]
    broken(loop, lost, monkeypatch)
    with pytest.raises(ValueError, match="broken"):
        lost.wait()
    assert lost.runs[0].seq.finish_reason is FinishReason.ABORT
    generated = lost.runs[0].seq.generated
    assert 0 < len(generated) < len(answers[1])
    assert generated == answers[1][: len(generated)]
    for other, answer in zip(others, (answers[0], answers[2]), strict=True):
        other.wait()
        assert tokens([e for e in events if e.seq_id == other.runs[0].seq.id]) == answer
    assert 0 < loop.engine.stats.accepted < loop.engine.stats.drafted
    assert is_idle(loop)


@pytest.mark.parametrize(("at", "lost"), [((1,), [1]), ((5,), [2]), ((2, 3), [2, 1])])
def test_a_pass_that_a_device_has_no_memory_for_ends_the_request_that_asks_most(
    loop, answers, monkeypatch, at, lost
):
    """The longest prompt's, of equal ones the last; nothing of the pass is kept, and its blocks are free again."""
    prompts = [PROMPTS[0], PROMPTS[4], [*PROMPTS[4], *PROMPTS[4]]]
    answers = plain(loop.engine.model, prompts, GREEDY)
    forward, count = loop.engine.model.forward, [0]

    def refused(*arguments):
        count[0] += 1
        hidden = forward(*arguments)  # as far as it came
        if count[0] in at:
            raise DeviceMemoryError("the device has no memory left")
        return hidden

    monkeypatch.setattr(loop.engine.model, "forward", refused)
    pool = loop.engine.cache.pool
    assert pool.num_used == 0
    handles = [loop.submit(prompt, GREEDY) for prompt in prompts]
    for i, (handle, answer) in enumerate(zip(handles, answers, strict=True)):
        if i in lost:
            with pytest.raises(DeviceMemoryError, match="no memory left"):
                handle.wait()
            generated = handle.runs[0].seq.generated
            assert generated == answer[: len(generated)] != answer
        else:
            handle.wait()
            assert handle.runs[0].seq.generated == answer
    assert is_idle(loop)
    assert pool.num_used == 0
    assert 0 < loop.engine.stats.accepted < loop.engine.stats.drafted
    again = loop.submit(prompts[lost[0]], GREEDY)
    again.wait()
    assert again.runs[0].seq.generated == answers[lost[0]]


@pytest.mark.parametrize("error", [CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit])
def test_a_sink_loses_no_other_streams_tokens_whatever_it_raises(loop, answers, error):
    """What is meant for the process is raised when all have got their events."""
    lost = loop.submit(PROMPTS[1], GREEDY, broken_once(lambda event: None, 3, error()))
    events: list[Event] = []
    others = [loop.submit(prompt, GREEDY, events.append) for prompt in (PROMPTS[0], PROMPTS[2])]
    raised = []
    while loop.engine.has_work:
        try:
            loop.step()
        except BaseException as stopped:
            raised.append(type(stopped))
    assert raised == [error] * issubclass(error, KeyboardInterrupt | SystemExit)
    with pytest.raises(error):
        lost.wait()
    for other, answer in zip(others, (answers[0], answers[2]), strict=True):
        assert tokens([e for e in events if e.seq_id == other.runs[0].seq.id]) == answer
    assert is_idle(loop)
