"""Threads that share a loop, and processes forked from them: nothing hangs, and each gets what it gets alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.engine.loop import EngineLoop
from tests.engine.harness import GREEDY, engine_for
from tests.engine.loops import PROMPTS, WAIT_S, in_thread, is_idle, tokens
from tests.tiny import tiny_model


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
        streams = [loop.submit(prompt, GREEDY) for prompt in PROMPTS]
        found = list(pool.map(lambda stream: tokens(list(stream)), streams, timeout=WAIT_S))
    assert found == answers


def test_threads_that_share_a_stream_get_each_event_once(loop, answers):
    stream = loop.submit(PROMPTS[0], GREEDY)
    with ThreadPoolExecutor(4) as pool:
        events = [e for part in pool.map(list, [stream] * 4, timeout=WAIT_S) for e in part]
    assert sorted(tokens(events)) == sorted(answers[0])
    assert sum(event.finish_reason is not None for event in events) == 1
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


def test_a_sink_may_ask_the_engine_whose_step_calls_it(loop, answers):
    """Its thread has the lock already."""
    num_running = []

    def ask(event: Event) -> None:
        with loop.lock():
            num_running.append(len(loop.engine.sequences))

    request, cancelled = loop.submit(PROMPTS[0], GREEDY), loop.submit(PROMPTS[1], GREEDY, ask)
    ending = in_thread(cancelled.cancel)
    ending.join(WAIT_S)
    assert not ending.is_alive()
    asking = loop.submit(PROMPTS[1], GREEDY, ask)
    waiting = in_thread(asking.wait)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert {*num_running} == {0, 1, 2}
    assert asking.runs[0].seq.generated == answers[1]
    request.wait()


def test_what_is_submitted_and_cancelled_while_a_thread_has_the_engine_is_done_afterwards(loop):
    """Nobody has to step for it."""
    cancelled = loop.submit(PROMPTS[0], GREEDY)
    with loop.lock():
        with ThreadPoolExecutor(1) as pool:
            submitted = pool.submit(loop.submit, PROMPTS[1], GREEDY).result(WAIT_S)
            pool.submit(cancelled.cancel).result(WAIT_S)
        assert loop.has_work
        assert [*loop.engine.sequences] == [cancelled.runs[0].seq.id]
    assert cancelled.is_finished
    assert [*loop.engine.sequences] == [submitted.runs[0].seq.id]


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_sink_may_fork_while_other_threads_wait(loop, answers):
    """The child goes on with the step in whose middle it is; the threads that wait are not in it."""
    children = []

    def fork(event: Event) -> None:
        if not children:
            while not loop.model_lock._turn.locked():
                time.sleep(0.001)
            children.append(os.fork())

    forking = loop.submit(PROMPTS[0], GREEDY, fork)
    stepping = in_thread(lambda: [loop.step(), os._exit(child()) if children[0] == 0 else None])

    def child() -> int:
        with suppress(BaseException):
            forking.wait()
            return int(forking.runs[0].seq.generated != answers[0])
        return 1

    waiting = in_thread(forking.wait)
    stepping.join(WAIT_S)
    waiting.join(WAIT_S)
    assert not stepping.is_alive()
    assert not waiting.is_alive()
    assert forking.runs[0].seq.generated == answers[0]
    assert ended(children[0]) == 0


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
