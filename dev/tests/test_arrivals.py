"""Loads of random arrivals: the same for a seed, and counted for each request and server."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import mean

import pytest

from dev import arrivals
from dev.arrivals import KINDS, Kind
from forerun.llm import LLM
from forerun.server.client import Remote
from tests.server.conftest import running


def test_a_seed_says_what_comes_when():
    first, again, other = (list(arrivals.arrivals(seed, 200, 4.0)) for seed in (1, 1, 2))
    assert first == again != other
    gaps = [after.at_s - one.at_s for one, after in pairwise(first)]
    assert mean(gaps) == pytest.approx(1 / 4, rel=0.3)
    assert {one.kind.name for one in first} == {kind.name for kind in KINDS}
    assert len({one.text[:5] for one in first}) > 100, "no two share a beginning"


def test_what_is_sent_is_counted(default_model):
    kinds = (Kind("question", 1, 20, 3), Kind("agent", 1, 300, 3))
    sizes = {"max_model_len": 1024, "max_num_seqs": 4, "prefill_chunk": 32}
    llm, written = LLM(str(default_model), drafter="none", **sizes), []
    with running(lambda: llm, strict_model_name=False) as (url, _):
        remote = Remote.of(url)
        found = arrivals.send(remote, arrivals.arrivals(0, 8, 50.0, kinds))
        arrivals.measure({"ours": remote}, [1], 3, 50.0, written.append)
    assert [one.kind for one in found] == [
        a.kind.name for a in arrivals.arrivals(0, 8, 50.0, kinds)
    ]
    assert all(one.num_new == 3 and not one.error for one in found)
    (row,) = map(json.loads, written)
    assert len(row["requests"]) == 3
    counted, sent = row["counts"], row["requests"]
    assert counted["prompt_tokens_total"] == sum(one["num_prompt"] for one in sent)
    assert counted["generation_tokens_total"] == sum(one["num_new"] for one in sent)
    assert counted["engine_rows_total"] >= counted["engine_steps_total"] > 0


def test_who_refuses_is_written_down():
    with running(lambda: LLM("none such"), wait=False) as (url, _):
        (one,) = arrivals.send(Remote.of(url), arrivals.arrivals(0, 1, 1.0))
    assert one.error
    assert one.first_s is None
