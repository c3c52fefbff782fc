"""`forerun bench learn` measures, writes and draws; what learns nothing is a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.lab.bench.learning import RequestPair, moving, summary


@pytest.mark.slow
def test_the_command_measures_and_draws(forerun, default_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "learn.json"
    few = ("--limit", 5, "-n", 48, "-c", 512, "-d", "mlp_speculator")
    code, printed, err = forerun("bench", "learn", *few, "--out", out, "--json")
    assert code == 0, err
    document = json.loads(printed)
    assert document == json.loads(out.read_text())
    assert document["summary"]["identical"] == document["summary"]["requests"] == 5
    assert sum(each["num_steps"] for each in document["requests"]) > 0
    assert out.with_name("learn-learning.png").stat().st_size > 10_000
    assert not (tmp_path / "learned").exists()


def test_a_drafter_that_learns_nothing_is_a_line(forerun) -> None:
    code, _, err = forerun("bench", "learn", "-d", "suffix", "--limit", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "learns nothing: try mlp_speculator or recycling" in err


def test_figures_are_of_tokens_over_passes() -> None:
    answered = [
        RequestPair(f"p{i}", (10, 10 - i), (20, 20), (1.0, 1.0), 0.5, 3, 0.01 * i, i != 2)
        for i in range(4)
    ]
    found = summary(answered)
    assert found["second_half"] == {"fixed": 2.0, "learning": 40 / 15}
    assert found["gain"] == pytest.approx(1 / 3)
    assert found["learn_share"] == 0.5
    assert (found["longest_step_s"], found["identical"], found["requests"]) == (0.03, 3, 4)
    assert moving(answered, 2) == [(2.0, 2.0), (2.0, 40 / 19), (2.0, 40 / 17), (2.0, 40 / 15)]
    assert moving([]) == []
