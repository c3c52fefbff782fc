"""Where there is no terminal, progress is a line now and then."""

from __future__ import annotations

from forerun.cli.tables import EVERY_S, counter


def lines(capsys, step_s: float, dones: list[float], total: int | None = 20) -> list[str]:
    """What is printed if each of the counts comes so many seconds after the one before."""
    now_s = 0.0
    with counter("measuring", total, clock=lambda: now_s) as show:
        for done in dones:
            now_s += step_s
            show(done)
    return capsys.readouterr().err.splitlines()


def test_what_is_quick_says_nothing(capsys):
    assert lines(capsys, EVERY_S / 100, [float(i) for i in range(20)]) == []


def test_what_is_slow_says_how_much_is_left(capsys):
    found = lines(capsys, EVERY_S / 2, [1, 2, 3, 4])
    assert found == ["measuring: 2 of 20, 0:01:30 left", "measuring: 4 of 20, 0:01:20 left"]


def test_what_an_earlier_run_did_took_none_of_this_ones_time(capsys):
    (line,) = lines(capsys, EVERY_S / 2, [18, 19])
    assert line == "measuring: 19 of 20, 0:00:05 left"


def test_without_a_total_the_count_is_said(capsys):
    assert lines(capsys, EVERY_S, [1], total=None) == ["measuring: 1"]
