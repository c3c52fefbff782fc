"""`forerun bench diff`: what changed is found, and noise is not called a gain."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.engine.stats import SpecStats
from forerun.lab.bench import diff
from forerun.lab.bench.measurement import Measurement, Round

ORIGIN = {"model": "m", "task": "t", "temperature": 0.0, "threads": 2, "commit": "a"}


def run_of(
    path: Path, seed: int, *, passes: int = 20, speedup: float = 2.0, noise: float = 0.0, **more
) -> Path:
    """Twelve groups in three rounds: the machine is up to four times as slow for a while, both systems alike."""
    random = np.random.default_rng(seed)
    name, num_groups = more.get("name", "suffix"), more.get("num_groups", 12)
    lines = [json.dumps({"origin": ORIGIN | more.get("origin", {})})]
    for group in range(num_groups):
        for number in range(3):
            slow = 1 + 3 * random.random()
            seconds = [slow, slow / speedup * float(np.exp(noise * random.standard_normal()))]
            systems = [
                Measurement(
                    system=system,
                    token_ids=[[group, *more.get("tokens", [1, 2])]],
                    ttft_s=[0.1],
                    decode_tokens=60,
                    decode_s=time_s,
                    stats=SpecStats(passes=count, emitted=60, drafts=1, drafted=80, accepted=40),
                )
                for system, time_s, count in zip(("none", name), seconds, (60, passes), strict=True)
            ]
            one = Round(f"g/{group}", "g", number, 1, systems)
            lines.append(json.dumps({"key": one.key, **asdict(one)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def row_of(tmp_path: Path, first: dict, second: dict) -> diff.Row:
    files = [run_of(tmp_path / f"{i}.jsonl", i, **given) for i, given in enumerate((first, second))]
    return diff.compare(*files)["rows"][-1]


def test_a_gain_is_found_on_a_machine_whose_speed_changes(tmp_path) -> None:
    row = row_of(tmp_path, {"noise": 0.1}, {"passes": 15, "speedup": 2.6, "noise": 0.1})
    assert row["gain"] == pytest.approx(1.3, rel=0.05)
    assert 1 < row["gain_lo"] < 1.3 < row["gain_hi"] < 1.45
    assert diff.verdict(row) == "faster"
    assert row["tau"] == [3.0, 4.0]
    assert row["identical"] == row["groups"] == 12


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_no_gain(tmp_path, seed) -> None:
    """The passes differ a little, the speed does not."""
    first = run_of(tmp_path / "a.jsonl", seed, noise=0.3)
    second = run_of(tmp_path / "b.jsonl", seed + 100, passes=19, noise=0.3)
    row = diff.compare(first, second)["rows"][-1]
    assert row["gain_lo"] < 1 < row["gain_hi"]
    assert diff.verdict(row) == "no difference is shown"


def test_no_gain_is_said_where_the_passes_are_the_same(tmp_path) -> None:
    row = row_of(tmp_path, {}, {"speedup": 3.0})
    assert (row["gain"], row["gain_lo"], row["same_passes"]) == (None, None, True)
    assert diff.verdict(row) == "the same passes"
    assert row["speedup"] == pytest.approx([2.0, 3.0])


def test_one_group_says_nothing_and_other_tokens_are_counted(tmp_path) -> None:
    row = row_of(tmp_path, {"num_groups": 1}, {"num_groups": 1, "passes": 10, "tokens": [1, 3]})
    assert diff.verdict(row) == "one group: not enough to say"
    assert row["identical"] == 0


def test_the_only_drafter_of_each_run_is_compared(tmp_path) -> None:
    row = row_of(tmp_path, {}, {"name": "recycling", "passes": 30})
    assert (row["drafter"], row["other"]) == ("suffix", "recycling")


def test_the_command_shows_what_changed(tmp_path, forerun) -> None:
    first = run_of(tmp_path / "a.jsonl", 1)
    second = run_of(tmp_path / "b.jsonl", 2, passes=15, speedup=2.6, origin={"commit": "b"})
    code, out, _ = forerun("bench", "diff", first, second)
    assert code == 0
    assert "commit: a > b" in out
    assert "faster" in " ".join(out.split())
    code, out, _ = forerun("bench", "diff", first, second, "--json")
    assert json.loads(out)["changed"] == {"commit": ["a", "b"]}
    other = run_of(tmp_path / "c.jsonl", 3)
    other.write_text(other.read_text().replace("g/", "h/"))
    with pytest.raises(ConfigError, match="no prompts in common"):
        diff.compare(first, other)
