"""Events reach who asked, whoever steps; and nothing hangs, whatever goes wrong."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from forerun.core.batch import Segment
from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.core.types import Event, FinishReason
from forerun.decoding.grammar import Compiling, GrammarState
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters import suffix
from forerun.drafting.base import Target
from forerun.drafting.predicted import PredictedText
from forerun.engine.loop import EngineLoop
from forerun.engine.metrics import RequestCounts
from forerun.engine.request import RequestHandle
from forerun.model.random_model import random_config
from forerun.torch.decoder import Decoder
from tests.engine.harness import GREEDY, LOOPING, engine_for, plain
from tests.tiny import tiny_model
from tests.torch.random_tensors import random_tensors

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
    return not (loop.engine.has_work or loop._requests or loop.engine.scheduler.running)


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


@pytest.mark.parametrize("leave", [lambda streams: streams[0].close(), list.clear])
def test_a_stream_that_is_left_before_its_first_event_ends_its_request(loop, answers, leave):
    other = loop.submit(PROMPTS[1], GREEDY)
    streams = [loop.submit(PROMPTS[0], GREEDY).events()]
    leave(streams)
    assert [*loop.engine.sequences] == [other.runs[0].seq.id]
    other.wait()
    assert other.runs[0].seq.generated == answers[1]
    assert is_idle(loop)


@pytest.mark.parametrize("slow", ["grammars", "encode"])
def test_others_step_while_a_request_is_prepared(loop, answers, slow):
    """A schema may take a second to compile, and a long prediction to encode."""
    has_begun, is_over, waits = threading.Event(), threading.Event(), []

    def takes_long(text: object) -> object:
        has_begun.set()
        waits.append(is_over.wait(WAIT_S))
        return Form(loop.engine.model.config.vocab_size, 10**6) if slow == "grammars" else [1, 2]

    setattr(loop.engine, f"_{slow}", takes_long)
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


def asks_for_a_grammar_in_the_making(loop) -> tuple[RequestHandle, Future[GrammarState]]:
    """A request whose grammar is compiled by nobody, and what stands for that."""
    compiled = Future[GrammarState]()
    loop.engine._grammars = lambda wanted: Compiling(compiled, lambda state: state)
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


@pytest.mark.parametrize("wait", [RequestHandle.wait, RequestHandle.wait_for_grammar])
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
    prepare = loop.engine.prepare
    monkeypatch.setattr(loop.engine, "prepare", lambda *given: time.sleep(0.3) or prepare(*given))
    handle = loop.submit(PROMPTS[0], GREEDY)
    handle.wait()
    assert handle.output().outputs[0].ttft_s >= 0.3


def test_finished_means_delivered(loop, monkeypatch):
    handles = [loop.submit(prompt, replace(GREEDY, n=2)) for prompt in PROMPTS[:2]]
    record, seen = RequestCounts.record, []

    def told(counts: RequestCounts, event: Event) -> None:
        own = next(h for h in handles if event.seq_id in {run.seq.id for run in h.runs})
        seen.append((own.is_finished, event.finish_reason is not None))
        record(counts, event)

    monkeypatch.setattr(RequestCounts, "record", told)
    while loop.step():
        pass
    assert (False, True) in seen
    assert not any(is_finished for is_finished, _ in seen)
    for handle in handles:
        assert handle.is_finished
        assert [e.finish_reason for e in handle.unread if e.finish_reason] == ["length"] * 2


def test_threads_that_share_a_stream_get_each_event_once(loop, answers):
    stream = loop.submit(PROMPTS[0], GREEDY).events()
    with ThreadPoolExecutor(4) as pool:
        events = [e for part in pool.map(list, [stream] * 4, timeout=WAIT_S) for e in part]
    assert sorted(tokens(events)) == sorted(answers[0])
    assert sum(event.finish_reason is not None for event in events) == 1
    assert is_idle(loop)


@pytest.mark.parametrize("where", ["_lock", "_queue"])
def test_a_stream_collected_while_its_thread_takes_the_lock_ends(loop, answers, where):
    """A collection of garbage may come at any moment."""
    forgotten, other = (loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2])
    streams = [forgotten.events()]
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

    setattr(loop.lock, where, Collecting(getattr(loop.lock, where)))
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


class Form:
    """A grammar that allows everything, until it is asked too often."""

    def __init__(self, vocab_size: int, left: int) -> None:
        self.vocab_size, self.left = vocab_size, [left]

    def _asked(self, answer):
        self.left[0] -= 1
        if self.left[0] < 0:
            raise ValueError("broken")
        return answer

    def allowed(self):
        return self._asked(np.ones(self.vocab_size, bool))

    def allows(self, token):
        return self._asked(True)

    def advance(self, token):
        return self._asked(self)

    def forced(self):
        return ()


class BrokenPrediction(PredictedText):
    def extend(self, *arguments):
        raise ValueError("broken")


def in_draft(loop, handle, monkeypatch):
    handle.runs[0].prediction = BrokenPrediction(())


def in_pack(loop, handle, monkeypatch):
    of, seq = Segment.of, handle.runs[0].seq

    def broken(slot, *others):
        if slot == seq.slot and len(seq.generated) > 3:
            raise ValueError("broken")
        return of(slot, *others)

    monkeypatch.setattr(Segment, "of", broken)


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
    keep, steps = loop.engine.cache.keep, [0]

    def interrupting(*arguments):
        steps[0] += 1
        keep(*arguments)
        if steps[0] == 3:
            signal.raise_signal(signal.SIGINT)

    loop.engine.cache.keep = interrupting
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
