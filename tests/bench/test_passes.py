"""Shapes of passes: read as written, run as said, compared within a round."""

from __future__ import annotations

import pytest

from forerun.bench.passes import Case, Comparison, OwnPasses, compare
from forerun.core.errors import ConfigError
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("8", Case(1, 8, 256)),
        ("512@0", Case(1, 512, 0)),
        ("1@4096", Case(1, 1, 4096)),
        ("32x1@128", Case(32, 1, 128)),
    ],
)
def test_a_case_is_read_and_written(text, case):
    assert Case.of(text) == case
    assert Case.of(str(case)) == case


@pytest.mark.parametrize("text", ["", "x", "0", "0x1", "8@", "-1", "1.5"])
def test_what_is_no_case_is_told(text):
    with pytest.raises(ConfigError, match="8x1@128"):
        Case.of(text)


def test_our_passes_have_the_rows_and_the_context_of_their_case():
    model, seen = tiny_model(), []
    forward = model.forward

    def counting(batch, cache, taps=()):
        seen.append([(s.num_rows, s.base) for s in batch.segments])
        return forward(batch, cache, taps)

    model.forward = counting
    passes = OwnPasses(model)
    for _ in range(2):
        assert passes.seconds(Case(3, 2, 5)) > 0
    assert [rows + base for ((rows, base),) in seen[:3]] == [5] * 3, "each has its context"
    assert seen[3:] == [[(2, 5)] * 3] * (len(seen) - 3), "filled once"


class Scripted:
    def __init__(self, *seconds):
        self.seconds_left = [*seconds]

    def seconds(self, case):
        return self.seconds_left.pop(0)


def test_ratios_are_paired_within_a_round():
    case = Case(2, 1, 8)
    sides = {"ours": Scripted(9, 1, 2, 4), "theirs": Scripted(9, 3, 4, 4)}  # the first warms up
    *_, found = compare(sides, [case], rounds=3)
    ours, theirs = found.rows("ours")
    assert (theirs["times_ours"], theirs["lo"], theirs["hi"]) == (2, 1, 3)
    assert ours["times_ours"] == 1
    assert (theirs["ms"], theirs["ms_best"], theirs["tok_s"]) == (4000, 3000, 0.5)


def test_no_rounds_are_refused():
    with pytest.raises(ConfigError, match="rounds"):
        next(compare({}, [], rounds=0))
    assert Comparison().rows("ours") == []
