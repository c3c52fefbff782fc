"""`forerun bench memory` measures and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun.hub.prompt_sets import TaskPrompt
from forerun.lab.bench.memory import groups, percents


@pytest.mark.slow
def test_the_command_measures_and_writes(forerun, default_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    few = ("--limit", 4, "--together", 4, "-n", 24, "-c", 256, "--cuts", "30")
    code, printed, _ = forerun("bench", "memory", "-d", "suffix,auto", *few, "--out", out, "--json")
    assert code == 0
    document = json.loads(printed)
    assert document == json.loads(out.read_text())
    assert [(row["drafter"], row["cut"]) for row in document["rows"]] == [
        *(("suffix", 0), ("suffix", 30)),
        *(("mlp_speculator++recycling", 0), ("mlp_speculator++recycling", 30)),
    ]
    assert all(row["identical"] == row["prompts"] for row in document["rows"])
    assert document["rows"][1]["generation_bytes"] < 0.7 * document["rows"][0]["generation_bytes"]


def test_conversations_of_different_categories_are_decoded_together() -> None:
    prompts = [TaskPrompt(f"p{i}", category, ("Hi.",)) for i, category in enumerate("aabcd")]
    batches = groups(prompts, 4)
    ids = [[prompt.id for prompt in group.prompts] for group in batches]
    assert ids == [["p0", "p1", "p2", "p3"], ["p4"]]


def test_wrong_cuts_are_refused() -> None:
    assert percents("65,10") == [0, 10, 65]
    for wrong in ("100", "-1", "some", "10,,20"):
        with pytest.raises(ConfigError, match="cuts must be percents from 0 to 99"):
            percents(wrong)
