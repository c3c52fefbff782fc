"""`forerun tune`: a table that the default drafter finds; with `-d` it prints what `-d` takes, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.drafters.recycling import shared_replies, table_file
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


def test_the_search_scores_what_is_asked(forerun, default_model):
    code, out, _ = forerun("tune", "-m", default_model, "-d", ONE, *SHORT, "--json")
    document = the_json(out)
    assert code == 0
    assert [row["drafter"] for row in document["drafters"]] == [SPELLED]
    assert document["drafter"] in (SPELLED, "none")
    measured = document["measured"]
    if measured:
        assert measured["identical"] == measured["prompts"] == 1
        assert measured["speedup"] > 0


def test_what_it_prints_is_what_d_takes(forerun, default_model):
    code, out, _ = forerun("tune", "-m", default_model, "-d", ONE, *SHORT)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("-d ")]
    printed = line.removeprefix("-d ").partition("  ")[0]
    assert DrafterSpec.of(printed).text() in (SPELLED, "none")


LEARN = ("--tokens", "60", "--limit", 1, "-n", 8, "-c", 128, "-t", 1)


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three prompts, an empty cache, and few replies that ship."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_replies, "replies", lambda: iter(["Hello world."]))
    path = tmp_path / "prompts.txt"
    path.write_text("Say hello.\nCount to ten.\nName a tree.\n")
    return path


def test_what_is_learned_is_found_by_the_default_drafter(forerun, tiny_gguf, prompts):
    given = ("tune", tiny_gguf, "--prompts", prompts, *LEARN)
    code, out, _ = forerun(*given, "--json")
    document = the_json(out)
    assert code == 0
    assert document["tokens"] >= 60
    assert document["measured"]["identical"] == document["measured"]["prompts"] == 1
    before, after = document["tau_in_full"]
    assert (document["table"] is None) == (after <= before)
    if document["table"] is not None:
        assert table_file.read_header(Path(document["table"])).model == tiny_gguf.stem
    answers = Path(document["answers"]).read_text(encoding="utf-8")
    code, out, _ = forerun(*given)
    assert code == 0
    assert Path(document["answers"]).read_text(encoding="utf-8") == answers, (
        "nothing is asked again"
    )
    assert "network" in out
    assert "with every draft in full: tau" in out
    assert "prompts that it did not learn from" in out
