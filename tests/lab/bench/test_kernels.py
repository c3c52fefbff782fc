"""What a pass costs: cases are read as written and run as said, figures fit together, ratios are paired."""

from __future__ import annotations

import pytest

from forerun.core.errors import ConfigError
from forerun.lab.bench import kernels
from forerun.lab.bench.kernels import OURS, READ, Case, PassTimings, in_turns, measure, timers
from tests.native.models import native
from tests.native.test_row_law import KINDS
from tests.tiny import tiny_model

MODEL = tiny_model()


def cases(*texts, context=8):
    return [Case.of(text, context) for text in texts]


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("8", Case(1, 8, 256)),
        ("512@0", Case(1, 512, 0)),
        (" 1@4096", Case(1, 1, 4096)),
        ("32x1@128", Case(32, 1, 128)),
    ],
)
def test_a_case_is_read_and_written(text, case):
    assert Case.of(text, 256) == case
    assert Case.of(str(case), 1) == case


@pytest.mark.parametrize("text", ["", "x", "0", "0x1", "8@", "-1", "1.5"])
def test_what_is_no_case_is_told(text):
    with pytest.raises(ConfigError, match="8x1@128"):
        Case.of(text, 128)


def test_figures_fit_together():
    *_, timings = measure(MODEL, cases("1", "2", "4", "2x1", "3@0"), rounds=3, others={})
    document = timings.document()
    rows = {row["case"]: row for row in document["rows"]}
    assert [row["k"] for row in rows.values()] == [1, 2, 4, 2, 3]
    assert rows["1@8"]["v"] == 1
    assert rows["3@0"]["v"] is None, "no pass of one row above that context"
    assert rows["2x1@8"]["v"] == pytest.approx(rows["2x1@8"]["ms"] / rows["1@8"]["ms"], rel=0.01)
    assert document["weights_mb"] == round(MODEL.nbytes() / 1e6, 2)
    ratio = rows["1@8"]["ms"] / document["stream_ms"]
    assert document["step_over_stream"] == pytest.approx(ratio, rel=0.01)
    assert all(row["times_ours"] == 1 for row in rows.values())


def test_every_case_is_a_pass_of_its_rows_above_its_context():
    model, seen = tiny_model(), []
    forward = model.forward

    def counting(batch, *args, **more):
        seen.append([(s.num_rows, s.base) for s in batch.segments])
        return forward(batch, *args, **more)

    model.forward = counting
    our_timers = timers(model, [Case(1, 1, 8), Case(1, 3, 8), Case(3, 2, 5)])
    assert [rows + base for ((rows, base),) in seen] == [8, 5, 5, 5], "one cache a context"
    seen.clear()
    for _ in range(2):
        assert all(ask() > 0 for ask in our_timers.values())
    assert seen == [[(1, 8)], [(3, 8)], [(2, 5)] * 3] * 2, "and leave it as it was"


def scripted(*seconds):
    left = [*seconds]
    return lambda case: left.pop(0)


def test_ratios_are_paired_within_a_round():
    case = Case(2, 1, 8)
    ours, theirs = scripted(9, 1, 2, 4), scripted(9, 3, 4, 4)  # the first warms up
    asked = {(OURS, case): lambda: ours(case), ("x", case): lambda: theirs(case)}
    *_, seconds = in_turns(asked, 3)
    document = PassTimings(
        {1: 8, 2: 8}, 2, {8: 0}, {}, {}, seconds | {(READ, None): [1.0]}
    ).document()
    mine, other = document["rows"]
    assert (other["peer"], other["times_ours"], other["lo"], other["hi"]) == ("x", 2, 1, 3)
    assert mine["times_ours"] == 1
    assert "peer" not in mine
    assert (other["ms"], other["ms_best"], other["tok_s"]) == (4000, 3000, 0.5)
    assert document["step_over_stream"] is None, "nothing had one row"


def test_attention_is_what_a_longer_context_takes():
    seconds = {(OURS, Case(1, 2, context)): [s] for context, s in ((0, 1.0), (8, 1.5), (16, 3.0))}
    timings = PassTimings(
        {1: 8, 2: 8}, 2, {0: 0, 8: 10**9, 16: 3 * 10**9}, {}, {}, seconds | {(READ, None): [1.0]}
    )
    assert [row["attention_gflop_s"] for row in timings.document()["rows"]] == [None, 4, 3]


def test_others_take_their_turns_at_every_case(monkeypatch):
    monkeypatch.setattr(kernels, "BURST_S", 0.0)
    asked = []
    other = lambda case: asked.append(str(case)) or 1.0  # noqa: E731
    *_, timings = measure(MODEL, cases("1", "2"), rounds=2, others={"x": other})
    assert asked == ["1@8", "2@8"] * 3
    assert [row.get("peer") for row in timings.document()["rows"]] == [None, "x"] * 2


@pytest.mark.parametrize("text", ["1@512", "512@1", "3@511"])
def test_what_does_not_fit_is_refused(text):
    with pytest.raises(ConfigError, match="context and rows must be at most"):
        timers(MODEL, cases(text))


def test_no_rounds_are_refused():
    with pytest.raises(ConfigError, match="repeats must be at least 1"):
        list(measure(MODEL, cases("1"), rounds=0, others={}))


def test_recurrent_models_have_passes_above_any_context():
    config, dtype = KINDS["hybrid"]
    model, case = native(config, dtype), Case(1, 3, 200)
    *_, timings = measure(model, [case], rounds=1, others={})
    assert timings.seconds[OURS, case][0] > 0
