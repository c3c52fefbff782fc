"""Requests that end before their time: closed, dropped, cancelled, interrupted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason
from forerun.engine.loop import Request
from tests.engine.harness import GREEDY
from tests.engine.loops import PROMPTS, WAIT_S, in_thread, is_idle, tokens


def test_closing_a_stream_cancels_it_alone(loop, answers):
    stream, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    next(stream)
    stream.close()
    assert stream.runs[0].seq.finish_reason is FinishReason.ABORT
    assert next(stream, None) is None
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


@pytest.mark.parametrize("leave", [lambda streams: streams[0].close(), list.clear])
def test_a_stream_that_is_left_before_its_first_event_ends_its_request(loop, answers, leave):
    other = loop.submit(PROMPTS[1], GREEDY)
    streams = [loop.submit(PROMPTS[0], GREEDY)]
    leave(streams)
    with loop.lock():
        assert [*loop.engine.sequences] == [other.runs[0].seq.id]
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


def test_a_request_can_be_cancelled_from_another_thread(loop):
    handle = loop.submit(
        PROMPTS[0], SamplingParams(temperature=0, ignore_eos=True, max_tokens=None)
    )
    seen: list[Event] = []

    def read() -> None:
        seen.extend(handle)

    reader = in_thread(read)
    while not handle.runs[0].seq.generated:
        time.sleep(0.001)
    handle.cancel()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert seen[-1].finish_reason is FinishReason.ABORT
    assert tokens(seen) == handle.runs[0].seq.generated
    assert is_idle(loop)


def test_a_sink_may_cancel_its_request(loop):
    handles: list[Request] = []
    handles.append(loop.submit(PROMPTS[0], GREEDY, lambda event: handles[0].cancel()))
    while loop.step():
        pass
    assert handles[0].runs[0].seq.finish_reason is FinishReason.ABORT
    assert handles[0].error is None


def test_a_stream_collected_inside_a_step_ends_after_it(loop, answers, monkeypatch):
    forgotten, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    next(forgotten)
    step, closed = loop.engine.step, []

    def collecting() -> list[Event]:
        if not closed:
            closed.append(forgotten.close())
            assert forgotten.runs[0].seq.finish_reason is None
        return step()

    monkeypatch.setattr(loop.engine, "step", collecting)
    other.wait()
    assert forgotten.runs[0].seq.finish_reason is FinishReason.ABORT
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


@pytest.mark.parametrize("where", ["_lock", "_turn"])
def test_a_stream_collected_while_its_thread_takes_the_lock_ends(loop, answers, where):
    """A collection of garbage may come at any moment."""
    forgotten, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    streams = [forgotten]
    del forgotten

    class Collecting:
        def __init__(self, lock) -> None:
            self.lock = lock

        def acquire(self, blocking: bool = True) -> bool:
            is_taken = self.lock.acquire(blocking)
            streams.clear()
            return is_taken

        def release(self) -> None:
            self.lock.release()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *error: object) -> None:
            self.release()

    setattr(loop.model_lock, where, Collecting(getattr(loop.model_lock, where)))
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """It is handled as in a terminal: a process in the background may have begun with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_end_of_a_step_and_the_others_go_on(loop, answers):
    interrupted, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    keep, steps = loop.engine.cache.keep, [0]

    def interrupting(*arguments):
        steps[0] += 1
        keep(*arguments)
        if steps[0] == 3:
            signal.raise_signal(signal.SIGINT)

    loop.engine.cache.keep = interrupting
    with pytest.raises(KeyboardInterrupt):
        list(interrupted)
    generated = interrupted.runs[0].seq.generated
    assert generated == answers[0][: len(generated)]
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_end_of_a_cancellation(loop):
    request = loop.submit(PROMPTS[0], replace(GREEDY, n=2))
    abort = loop.engine.abort

    def interrupting(seq_id):
        signal.raise_signal(signal.SIGINT)
        return abort(seq_id)

    loop.engine.abort = interrupting
    with pytest.raises(KeyboardInterrupt):
        request.cancel()
    assert request.is_finished
    assert is_idle(loop)
