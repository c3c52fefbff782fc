"""Events reach who asked, whoever steps; and nothing hangs, whatever goes wrong."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason
from forerun.drafters import suffix
from forerun.drafting.base import Target
from forerun.engine.loop import EngineLoop, RequestHandle
from forerun.model.decoder import Decoder
from forerun.model.random_model import random_config, random_weights
from tests.engine.harness import GREEDY, LOOPING, engine_for, plain
from tests.tiny import tiny_model

PROMPTS = [[*prompt, last] for prompt in LOOPING for last in (3, 9)]
WAIT_S = 60


@pytest.fixture
def loop() -> EngineLoop:
    """Drafts, and runs three sequences at once."""
    model = tiny_model(3, sharpness=3.0)
    drafter = suffix.build(suffix.Options(), Target(model, None, 3, 256))
    return EngineLoop(engine_for(model, drafter, max_num_seqs=3))


@pytest.fixture
def answers(loop: EngineLoop) -> list[list[int]]:
    return plain(loop.engine.model, PROMPTS, GREEDY)


def tokens(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_idle(loop: EngineLoop) -> bool:
    return not (loop.engine.has_work or loop._handles or loop.engine.scheduler.running)


def test_two_interleaved_streams_lose_nothing(loop, answers):
    streams = [loop.submit(prompt, GREEDY).events() for prompt in PROMPTS[:2]]
    events: list[list[Event]] = [[], []]
    while any(streams):
        for i, stream in enumerate(streams):
            if stream is not None:
                event = next(stream, None)
                if event is None:
                    streams[i] = None
                else:
                    events[i].append(event)
    assert [tokens(each) for each in events] == answers[:2]
    assert [each[-1].finish_reason for each in events] == [FinishReason.LENGTH] * 2
    assert is_idle(loop)


def test_threads_at_once_get_what_they_get_alone(loop, answers):
    def answer(prompt: list[int]) -> list[int]:
        handle = loop.submit(prompt, GREEDY)
        handle.wait()
        return handle.runs[0].seq.generated

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(answer, PROMPTS * 3, timeout=WAIT_S))
    assert found == answers * 3
    assert is_idle(loop)


def test_streams_in_threads_get_what_they_get_alone(loop, answers):
    with ThreadPoolExecutor(4) as pool:
        streams = [loop.submit(prompt, GREEDY).events() for prompt in PROMPTS]
        found = list(pool.map(lambda stream: tokens(list(stream)), streams, timeout=WAIT_S))
    assert found == answers


def test_another_request_runs_to_its_end_while_a_stream_is_open(loop, answers):
    stream = loop.submit(PROMPTS[0], GREEDY).events()
    first = next(stream)
    handle = loop.submit(PROMPTS[1], GREEDY)
    handle.wait()
    assert handle.runs[0].seq.generated == answers[1]
    assert tokens([first, *stream]) == answers[0]


def test_closing_a_stream_cancels_it_alone(loop, answers):
    stream, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    events = stream.events()
    next(events)
    events.close()
    assert stream.runs[0].seq.finish_reason is FinishReason.ABORT
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


def test_all_sequences_of_a_request_are_in_its_events(loop):
    params = SamplingParams(n=3, seed=4, max_tokens=20)
    handle = loop.submit(PROMPTS[0], params)
    events = list(handle.events())
    for run in handle.runs:
        assert tokens([e for e in events if e.seq_id == run.seq.id]) == run.seq.generated
    assert len({tuple(run.seq.generated) for run in handle.runs}) == 3
    assert is_idle(loop)


def test_a_request_can_be_cancelled_from_another_thread(loop):
    handle = loop.submit(
        PROMPTS[0], SamplingParams(temperature=0, ignore_eos=True, max_tokens=None)
    )
    seen: list[Event] = []

    def read() -> None:
        seen.extend(handle.events())

    reader = in_thread(read)
    while not handle.runs[0].seq.generated:
        time.sleep(0.001)
    handle.cancel()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert seen[-1].finish_reason is FinishReason.ABORT
    assert tokens(seen) == handle.runs[0].seq.generated
    assert is_idle(loop)


def test_a_stream_collected_inside_a_step_ends_after_it(loop, answers, monkeypatch):
    forgotten, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    events = forgotten.events()
    next(events)
    step, closed = loop.engine.step, []

    def collecting() -> list[Event]:
        if not closed:
            closed.append(events.close())
            assert forgotten.runs[0].seq.finish_reason is None
        return step()

    monkeypatch.setattr(loop.engine, "step", collecting)
    other.wait()
    assert forgotten.runs[0].seq.finish_reason is FinishReason.ABORT
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


def failing(loop: EngineLoop, at: int, error: BaseException) -> None:
    """The engine fails in a step, once."""
    verify, count = loop.engine._verify, [0]

    def fail(*arguments):
        count[0] += 1
        if count[0] == at:
            raise error
        return verify(*arguments)

    loop.engine._verify = fail


def test_an_error_in_a_step_reaches_every_request_and_the_next_ones_run(loop, answers):
    failing(loop, 4, RuntimeError("boom"))
    handles = [loop.submit(prompt, GREEDY) for prompt in PROMPTS]  # some still wait for a slot
    said: list[str] = []

    def wait(handle: RequestHandle) -> None:
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
    weights = random_weights(3, config, sharpness=3.0)
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


def test_a_stream_gives_what_came_before_the_error_then_raises_it(loop, answers):
    failing(loop, 5, RuntimeError("boom"))
    seen: list[Event] = []
    with pytest.raises(RuntimeError, match="boom"):
        seen.extend(loop.submit(PROMPTS[0], GREEDY).events())
    assert 0 < len(tokens(seen)) < len(answers[0])
    assert tokens(seen) == answers[0][: len(tokens(seen))]


def test_a_sink_gets_the_events_and_one_that_fails_ends_its_own_request(loop, answers):
    events: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError("sink failed")

    good = loop.submit(PROMPTS[0], GREEDY, events.append)
    bad = loop.submit(PROMPTS[1], GREEDY, broken)
    while loop.step():
        pass
    assert tokens(events) == answers[0]
    assert good.error is None
    with pytest.raises(ValueError, match="sink failed"):
        bad.wait()
    assert is_idle(loop)


def test_a_sink_may_cancel_its_request(loop):
    handles: list[RequestHandle] = []
    handles.append(loop.submit(PROMPTS[0], GREEDY, lambda event: handles[0].cancel()))
    while loop.step():
        pass
    assert handles[0].runs[0].seq.finish_reason is FinishReason.ABORT
    assert handles[0].error is None


def test_ctrl_c_waits_for_the_end_of_a_step_and_the_others_go_on(loop, answers):
    interrupted, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    keep, steps = loop.engine._keep, [0]

    def interrupting(*arguments):
        steps[0] += 1
        keep(*arguments)
        if steps[0] == 3:
            signal.raise_signal(signal.SIGINT)

    loop.engine._keep = interrupting
    # A process in the background may have begun with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(interrupted.events())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    generated = interrupted.runs[0].seq.generated
    assert generated == answers[0][: len(generated)]
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


def test_a_thread_that_steps_on_lets_others_in(loop):
    slow = loop.submit(PROMPTS[0], SamplingParams(temperature=0, ignore_eos=True, max_tokens=200))
    driver = in_thread(slow.wait)
    others = [
        loop.submit(prompt, SamplingParams(temperature=0, max_tokens=2)) for prompt in PROMPTS
    ]
    for other in others[:2]:
        other.wait()
    assert len(slow.runs[0].seq.generated) < 200, "they need not wait for its end"
    driver.join(WAIT_S)
    assert not driver.is_alive()
    for other in others:
        other.wait()


def test_what_is_wrong_with_a_request_is_told_who_asked(loop):
    with pytest.raises(RequestError, match="the prompt is empty"):
        loop.submit([], GREEDY)
    assert is_idle(loop)


def test_completions_of_one_prompt_are_streams_of_one_seed(loop):
    """The first is that of a request for one; each is the same, however many are asked for."""
    params = replace(GREEDY, temperature=1, seed=2**63 - 1, max_tokens=12)

    def answers(n: int) -> list[list[int]]:
        request = loop.submit(LOOPING[0], replace(params, n=n))
        request.wait()
        return [run.seq.generated for run in request.runs]

    three = answers(3)
    assert [answers(1), answers(2)] == [three[:1], three[:2]]
    assert len({*map(tuple, three)}) > 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_of_a_fork_in_the_middle_of_a_step_answers(loop, answers, threads):
    torch.set_num_threads(threads)
    model = tiny_model(3, sharpness=3.0)  # with threads of its own
    loop = EngineLoop(engine_for(model, max_num_seqs=3))
    endless = loop.submit(PROMPTS[1], replace(GREEDY, max_tokens=240))
    is_over = threading.Event()

    def step_on() -> None:
        while not is_over.is_set():
            if not loop.step():
                loop.submit(PROMPTS[1], replace(GREEDY, max_tokens=240))

    driver = in_thread(step_on)
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                is_fine = False
                with suppress(BaseException):
                    request = loop.submit(PROMPTS[0], GREEDY)
                    request.wait()
                    is_fine = request.runs[0].seq.generated == answers[0]
                os._exit(0 if is_fine else 1)
            assert ended(child) == 0
    finally:
        is_over.set()
        driver.join(WAIT_S)
    assert endless.runs[0].seq.generated
    assert not driver.is_alive()


def ended(child: int) -> int | None:
    """A process's exit code; None, and it is killed, if it hangs."""
    end_s = time.monotonic() + WAIT_S / 2
    while time.monotonic() < end_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
