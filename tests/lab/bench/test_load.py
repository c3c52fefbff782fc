# ruff: noqa: F811  # fixtures of other folders
"""Loads and the figures that come of them: percentiles against another implementation, loads against a real server."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.lab.bench.load import Load, Run, Served, draw
from forerun.lab.bench.serving import bounds, figures
from forerun.lab.bench.workload import lengthened
from forerun.server.client import Remote
from tests.server.conftest import llm, served, url, wait_until  # noqa: F401

PROMPTS = [TaskPrompt(str(i), "text", (f"Say {i}.",)) for i in range(6)]
BODY = {"max_tokens": 6, "temperature": 0}


# Loads


@given(st.integers(0, 99), st.integers(1, 20))
def test_prompts_are_drawn_by_the_seed_and_none_twice_before_all(seed, count):
    drawn = draw(PROMPTS, count, seed)
    assert drawn == draw(PROMPTS, count, seed)
    for start in range(0, count, len(PROMPTS)):
        part = [prompt.id for prompt in drawn[start : start + len(PROMPTS)]]
        assert len({*part}) == len(part)
    assert len(drawn) == count


def test_arrivals_are_a_poisson_process():
    load = Load(PROMPTS * 1000, BODY, request_rate=4.0, seed=3)
    gaps = [after - before for before, after in itertools.pairwise(load.arrivals_s())]
    assert statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.05)  # as its mean: exponential
    assert load.arrivals_s() == load.arrivals_s()
    assert {*Load(PROMPTS, BODY, request_rate=math.inf).arrivals_s()} == {0.0}


@pytest.mark.parametrize("wrong", [{"request_rate": 0}, {"request_rate": -1}, {"concurrency": 0}])
def test_a_load_of_nothing_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be"):
        Load(PROMPTS, BODY, **wrong)


def test_the_first_requests_are_spread_over_the_ramp():
    load = Load(PROMPTS, BODY, 4, ramp_up_s=2.0)
    assert load.arrivals_s() == [0.0, 0.5, 1.0, 1.5, 0.0, 0.0]
    assert Load(PROMPTS[:2], BODY, 4, ramp_up_s=2.0).arrivals_s() == [0.0, 1.0]
    with pytest.raises(ConfigError, match="ramp_up is for requests without a request_rate"):
        Load(PROMPTS, BODY, 4, 2.0, ramp_up_s=2.0)


@given(st.integers(1, 40))
def test_prompts_are_lengthened_to_so_many_tokens_and_begin_as_they_did(num_tokens):
    made = lengthened(
        PROMPTS, num_tokens, lambda text: [*text.encode()], lambda ids: bytes(ids).decode()
    )
    assert [one.id for one in made] == [one.id for one in PROMPTS]
    for short, long in zip(PROMPTS, made, strict=True):
        assert len(long.turns[0]) == num_tokens
        assert long.turns[0].startswith(short.turns[0][:num_tokens])


# Figures

SERVED = st.builds(
    Served,
    prompt=st.just("p"),
    start_s=st.just(0.0),
    ttft_s=st.floats(0, 1),
    e2e_s=st.floats(1, 9),
    itl_s=st.lists(st.floats(0, 1), max_size=4),
    output_tokens=st.integers(1, 9),
)


def percentile(values: list[float], percent: int) -> float:
    """Interpolated between the two nearest ranks, as the standard library has it."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@given(st.lists(SERVED, min_size=1, max_size=12))
def test_percentiles_equal_the_standard_librarys(done):
    row = figures(done, 10.0)
    latencies = {
        "ttft": [one.ttft_s for one in done],
        "e2el": [one.e2e_s for one in done],
        "itl": [gap for one in done for gap in one.itl_s],
        "tpot": [
            (one.e2e_s - one.ttft_s) / (one.output_tokens - 1)
            for one in done
            if one.output_tokens > 1
        ],
    }
    for name, values in latencies.items():
        if not values:
            assert row[f"mean_{name}_ms"] is None
            continue
        expected = {f"p{p}": percentile(values, p) for p in (50, 90, 99)}
        expected |= {"mean": statistics.fmean(values), "std": statistics.pstdev(values)}
        for word, value in expected.items():
            assert row[f"{word}_{name}_ms"] == pytest.approx(value * 1e3, abs=2e-3)


def test_throughput_and_goodput_count_what_was_answered():
    done = [
        Served("a", 0.0, 0.1, 1.1, [0.5, 0.5], 10, 3, 4, 1, 1),
        Served("b", 0.0, 0.3, 1.3, [0.5, 0.5], 20, 3),
        Served("c", 0.0, 0.1, 9.1, [4.0, 5.0], 30, 3),
        Served("d", 0.0, e2e_s=1.0, error="refused"),
    ]
    row = figures(done, 10.0, bounds("ttft:200, tpot:1000"))
    assert (row["completed"], row["failed"]) == (3, 1)
    assert row["request_throughput"] == 0.3
    assert row["output_throughput"] == 0.9
    assert row["total_token_throughput"] == 6.9
    assert row["request_goodput"] == 0.1  # b came too late, c was too slow
    assert row["acceptance_rate"] == 0.25
    assert figures(done, 10.0)["request_goodput"] is None


@pytest.mark.parametrize("wrong", ["tfft:200", "ttft", "ttft:x", "ttft:0", "itl:3"])
def test_goodput_that_cannot_be_read_is_refused(wrong):
    with pytest.raises(ConfigError, match="goodput"):
        bounds(wrong)


# A real server


def test_a_load_is_answered_in_full_and_its_times_add_up(url):
    run = Run(Load(PROMPTS, BODY, 2, 200.0), Remote.of(url))
    done = [*run]
    assert sorted(one.prompt for one in done) == [prompt.id for prompt in PROMPTS]
    for one in done:
        assert one.error is None
        assert 0 < one.output_tokens <= 6
        assert one.input_tokens > 0
        assert 0 < one.ttft_s <= one.e2e_s
        assert one.ttft_s + sum(one.itl_s) == pytest.approx(one.e2e_s)
        assert one.start_s + one.e2e_s <= run.seconds
    edges = [(one.start_s + 1e-4, 1) for one in done] + [(o.start_s + o.e2e_s, -1) for o in done]
    at_once = itertools.accumulate(change for _, change in sorted(edges))
    assert max(at_once) == 2


def test_who_stops_early_ends_the_requests_that_run(served):
    url, service = served
    body = {"max_tokens": 100, "temperature": 1.5, "ignore_eos": True, "seed": 1}
    answers = iter(Run(Load(PROMPTS[:3], body, 1), Remote.of(url)))
    lasted_s = next(answers).e2e_s
    start_s = time.perf_counter()
    answers.close()
    assert time.perf_counter() - start_s < lasted_s
    wait_until(lambda: service.num_running == 0)


def test_what_the_server_refuses_is_counted_as_failed(url):
    load = Load(PROMPTS[:2], {**BODY, "temperature": -1}, 1)
    done = [*Run(load, Remote.of(url))]
    assert all("refuses with 400" in (one.error or "") for one in done)
    assert figures(done, 1.0)["failed"] == 2


# The command


def test_bench_serve_measures_a_sweep_and_resumes(forerun, url, tmp_path):
    out = tmp_path / "load.jsonl"
    flags = ["--url", url, "--num-prompts", "3", "-n", "4", "--concurrency", "1,3", "--out", out]
    code, printed, _ = forerun("bench", "serve", *flags, "--goodput", "ttft:60000", "--json")
    assert code == 0
    rows = json.loads(printed)["rows"]
    assert [row["max_concurrency"] for row in rows] == [1, 3]
    assert all(row["completed"] == 3 and row["request_goodput"] > 0 for row in rows)
    written = out.read_text()
    code, printed, _ = forerun("bench", "serve", *flags)
    assert code == 0
    assert "time to first token" in printed
    assert out.read_text() == written  # nothing was measured again


def test_ctrl_c_keeps_what_was_measured(forerun, url, monkeypatch):
    answers = Run.__iter__

    def interrupted(self):
        yield next(answers(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "__iter__", interrupted)
    flags = ["--url", url, "--num-prompts", "3", "-n", "4", "--concurrency", "1"]
    code, printed, _ = forerun("bench", "serve", *flags, "--json")
    assert code == 130
    (row,) = json.loads(printed)["rows"]
    assert (row["completed"], row["is_whole"]) == (1, False)


@pytest.mark.slow
def test_a_model_is_served_and_its_server_ends(forerun, default_model):
    flags = ["--num-prompts", "2", "-n", "4", "--concurrency", "2", "-c", "512", "--json"]
    more = ["--input-len", "100", "--ramp-up", "0.1"]
    code, printed, _ = forerun("bench", "serve", default_model, *flags, *more)
    assert code == 0
    (row,) = json.loads(printed)["rows"]
    assert (row["system"], row["completed"]) == ("forerun", 2)
    assert row["total_input_tokens"] > 200


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_fails_no_request_and_ends_the_server(default_model):
    command = [sys.executable, "-m", "forerun", "bench", "serve", str(default_model), "--json"]
    command += ["--concurrency", "2", "-c", "512", "--num-prompts", "500"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        time.sleep(20)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    (row,) = json.loads(printed)["rows"]
    assert row["completed"] > 0
    assert (row["failed"], row["is_whole"]) == (0, False)
