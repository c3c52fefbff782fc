"""`forerun autotune` on the default model: it prints what `-d` takes, and writes nothing."""

from __future__ import annotations

import pytest

from forerun.drafting.spec import DrafterSpec
from forerun.lab.tune import report
from tests.cli.helpers import the_json

ONE = "suffix:num_draft=2,factor=2,min_token_prob=0.2,max_depth=16"
"""Every option that could be tuned is given: one setting is scored."""
SPELLED = "suffix:max_depth=16,num_draft=2,factor=2.0,min_token_prob=0.2"
SHORT = ("--limit", 1, "-n", 8, "--repeats", 1, "-c", 256, "-t", 1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few passes to time."""
    monkeypatch.setattr(report, "CONTEXTS", (16, 32))
    monkeypatch.setattr(report, "WIDTHS", (1, 4))


def test_autotune_scores_what_is_asked(forerun, default_model):
    code, out, _ = forerun("autotune", "-m", default_model, "-d", ONE, *SHORT, "--json")
    document = the_json(out)
    assert code == 0
    assert [row["drafter"] for row in document["drafters"]] == [SPELLED]
    assert document["drafter"] in (SPELLED, "none")
    measured = document["measured"]
    if measured:
        assert measured["identical"] == measured["prompts"] == 1
        assert measured["speedup"] > 0


def test_what_it_prints_is_what_d_takes(forerun, default_model):
    code, out, _ = forerun("autotune", "-m", default_model, "-d", ONE, *SHORT)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("-d ")]
    printed = line.removeprefix("-d ").partition("  ")[0]
    assert DrafterSpec.of(printed).text() in (SPELLED, "none")
