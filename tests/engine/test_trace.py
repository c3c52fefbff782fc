"""A trace: every phase of every step, and nothing changed by looking."""

from __future__ import annotations

import itertools
import json

import pytest

from forerun.core.params import SamplingParams
from forerun.drafters import draft_model, suffix
from forerun.drafting.base import Target
from forerun.engine.stats import PHASES, Timers
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
NOISY = tiny_model(3, sharpness=3.0, noise=0.15)
SAMPLED = SamplingParams(temperature=0.8, seed=5, max_tokens=30)


def engine(name: str = "suffix"):
    target = Target(MODEL, None, max_num_seqs=4, max_len=256)
    if name == "suffix":
        return engine_for(MODEL, suffix.build(suffix.Options(), target))
    options = draft_model.Options(model="tiny", num_draft=3)
    return engine_for(MODEL, draft_model.DraftModel(NOISY, options, target))


def traced(name: str = "suffix", params: SamplingParams = GREEDY):
    running = engine(name)
    trace = running.start_trace()
    return running, trace, complete(running, LOOPING, params)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["suffix", "draft_model"])
def test_looking_changes_no_token(name, params):
    _, _, runs = traced(name, params)
    plain = complete(engine(name), LOOPING, params)
    assert [run.seq.generated for run in runs] == [run.seq.generated for run in plain]


@pytest.mark.parametrize("name", ["suffix", "draft_model"])
def test_its_counts_are_the_engines(name):
    running, trace, runs = traced(name, SAMPLED)
    assert sum(step.counts["drafted"] for step in trace.steps) == running.stats.drafted > 0
    assert sum(step.counts["accepted"] for step in trace.steps) == running.stats.accepted > 0
    assert sum(step.counts["emitted"] for step in trace.steps) == sum(
        len(r.seq.generated) for r in runs
    )
    for step in trace.steps:
        assert step.counts["accepted"] <= step.counts["drafted"] <= step.counts["budget"]
        assert step.counts["rows"] > step.counts["drafted"]
    assert [step.reads_prompt for step in trace.steps[:2]] == [True, False]


def test_the_phases_of_a_step_follow_one_another_and_processing_lies_inside_verify():
    _, trace, _ = traced(params=SAMPLED)
    for step in trace.steps:
        outer = [span for span in step.spans if span.phase != "process"]
        assert [span.phase for span in outer] == [phase for phase in PHASES if phase != "process"]
        for before, after in itertools.pairwise(outer):
            assert before.stop_s <= after.start_s
        (verify,) = (span for span in step.spans if span.phase == "verify")
        inner = [span for span in step.spans if span.phase == "process"]
        assert inner
        assert all(verify.start_s <= p.start_s <= p.stop_s <= verify.stop_s for p in inner)


def test_greedy_requests_process_no_logits():
    running, trace, _ = traced(params=GREEDY)
    assert trace.seconds["process"] == 0
    assert running.stats.emitted > 0


def test_a_clock_that_ticks_once_a_reading_is_shared_out_without_loss():
    running = engine()
    running.timers.clock = itertools.count().__next__
    trace = running.start_trace()
    complete(running, LOOPING[:1], SAMPLED)
    for step in trace.steps:
        seconds = step.seconds()
        assert sum(seconds.values()) == step.stop_s - step.start_s
        assert all(value > 0 for value in seconds.values())
    profile = trace.profile()
    assert profile["prompt"]["steps"] + profile["decode"]["steps"] == len(trace.steps)
    for part in profile.values():
        assert part["total"] == sum(part[phase] for phase in (*PHASES, "other"))


def test_the_controller_sees_the_same_times_with_a_trace_and_without():
    running, trace, _ = traced()
    assert running.timers is trace
    of_phases = sum(trace.seconds[name] for name in ("pack", "forward", "head", "verify", "keep"))
    assert trace.verify_s == of_phases
    assert {*PHASES} == trace.seconds.keys()


def test_the_chrome_trace_is_made_of_whole_events_that_nest():
    _, trace, _ = traced(params=SAMPLED)
    document = json.loads(trace.chrome())
    head, *events = document["traceEvents"]
    assert head["args"] == {"name": "forerun"}
    steps = [event for event in events if event["name"] in ("step", "prompt")]
    assert len(steps) == len(trace.steps)
    assert {event["name"] for event in events} == {"step", "prompt", *PHASES}
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        assert event["args"].keys() == {"rows", "budget", "drafted", "accepted", "emitted"}
        end = event["ts"] + event["dur"]
        inside = [s for s in steps if s["ts"] <= event["ts"] and end <= s["ts"] + s["dur"] + 0.01]
        assert [step["args"] for step in inside] == [event["args"]]


def test_an_engine_without_a_trace_keeps_no_spans():
    running = engine()
    complete(running, LOOPING, GREEDY)
    assert running.trace is None
    assert type(running.timers) is Timers
