"""Events reach who asked, whoever steps: streams, sinks, outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason
from forerun.engine.metrics import RequestCounts
from tests.engine.harness import GREEDY, LOOPING
from tests.engine.loops import PROMPTS, failing, is_idle, tokens


def test_two_interleaved_streams_lose_nothing(loop, answers):
    streams = [loop.submit(prompt, GREEDY) for prompt in PROMPTS[:2]]
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


def test_another_request_runs_to_its_end_while_a_stream_is_open(loop, answers):
    stream = loop.submit(PROMPTS[0], GREEDY)
    first = next(stream)
    handle = loop.submit(PROMPTS[1], GREEDY)
    handle.wait()
    assert handle.runs[0].seq.generated == answers[1]
    assert tokens([first, *stream]) == answers[0]


def test_all_sequences_of_a_request_are_in_its_events(loop):
    params = SamplingParams(n=3, seed=4, max_tokens=20)
    handle = loop.submit(PROMPTS[0], params)
    events = list(handle)
    for run in handle.runs:
        assert tokens([e for e in events if e.seq_id == run.seq.id]) == run.seq.generated
    assert len({tuple(run.seq.generated) for run in handle.runs}) == 3
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


def test_what_is_wrong_with_a_request_is_told_who_asked(loop):
    with pytest.raises(RequestError, match="the prompt is empty"):
        loop.submit([], GREEDY)
    assert is_idle(loop)


def test_a_stream_gives_what_came_before_the_error_then_raises_it(loop, answers):
    failing(loop, 5, RuntimeError("boom"))
    seen: list[Event] = []
    with pytest.raises(RuntimeError, match="boom"):
        seen.extend(loop.submit(PROMPTS[0], GREEDY))
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
