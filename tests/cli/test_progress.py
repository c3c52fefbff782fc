"""Where there is no terminal, progress is a line now and then."""

from __future__ import annotations

import io
import itertools

from forerun.cli.tables import EVERY_S, PlainProgress


def lines(step_s: float, dones: list[float], total: int | None = 20) -> list[str]:
    file, clock = io.StringIO(), itertools.count(0, step_s)
    progress = PlainProgress("measuring", total, file, clock=lambda: next(clock))
    for done in dones:
        progress.update(done)
    return file.getvalue().splitlines()


def test_what_is_quick_says_nothing():
    assert lines(EVERY_S / 100, [float(i) for i in range(20)]) == []


def test_what_is_slow_says_how_much_is_left():
    found = lines(EVERY_S / 2, [1, 2, 3, 4])
    assert found == ["measuring: 2 of 20, 1:30 left", "measuring: 4 of 20, 1:20 left"]


def test_what_an_earlier_run_did_took_none_of_this_ones_time():
    (line,) = lines(EVERY_S / 2, [18, 19])
    assert line == "measuring: 19 of 20, 0:05 left"


def test_what_is_done_beyond_the_total_takes_no_time():
    assert lines(EVERY_S, [19, 21])[-1] == "measuring: 21 of 20, 0:00 left"


def test_without_a_total_the_count_is_said():
    assert lines(EVERY_S, [1], total=None) == ["measuring: 1"]
