"""The committed long prompts ask the same at every length, above the end of the same text."""

from __future__ import annotations

from pathlib import Path

from dev.make_workloads import LENGTHS
from forerun.hub.prompt_sets import read

LONG = Path(__file__).parents[2] / "benchmarks" / "workloads" / "long.jsonl"


def test_a_shorter_context_is_the_end_of_the_longer_one():
    texts: dict[str, dict[str, str]] = {}
    for prompt in read(LONG):
        kind, _, length = prompt.id.partition("-")
        assert prompt.category == length
        texts.setdefault(kind, {})[length] = prompt.turns[0]
    assert texts.keys() == {"novel", "textbook", "code", "agent"}
    for found in texts.values():
        assert list(found) == list(LENGTHS)
        assert found["16k"].endswith(found["1k"][-2000:])
        for name, num_tokens in LENGTHS.items():
            assert 3 < len(found[name]) / num_tokens < 5.5, "characters a token"
