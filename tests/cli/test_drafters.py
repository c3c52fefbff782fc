"""`forerun drafters` and `forerun check-drafter`, for our drafters and others'."""

from __future__ import annotations

import pytest

from tests.cli.helpers import the_json
from tests.drafters.helpers import REPEAT


@pytest.fixture
def repeat(tmp_path):
    path = tmp_path / "repeat.py"
    path.write_text(REPEAT)
    return path


def test_every_drafter_is_listed(forerun):
    code, out, _ = forerun("drafters")
    assert code == 0
    for word in ("suffix", "draft_model", "prompt_lookup", "ngram", "No drafting"):
        assert word in out
    _, out, _ = forerun("drafters", "--json")
    required = {
        (doc["name"], option["name"])
        for doc in the_json(out)["drafters"]
        for option in doc["options"]
        if option["default"] is None
    }
    assert required == {(name, "model") for name in ("draft_model", "eagle3", "medusa")}


def test_the_options_of_a_drafter_are_shown(forerun, repeat):
    code, out, _ = forerun("drafters", "prompt-lookup")
    assert code == 0
    for word in (
        "prompt_lookup (forerun)",
        "ngram",
        "num_draft",
        "Tokens copied at most",
        "draft_max",
    ):
        assert word in " ".join(out.split())
    code, out, _ = forerun("drafters", repeat, "--json")
    (doc,) = the_json(out)["drafters"]
    assert doc["origin"] == "file"
    assert doc["options"][0]["help"] == "Repetitions guessed."
    assert forerun("drafters", "sufix")[0] == 2


def test_check_drafter_says_line_by_line_what_holds(forerun, repeat, monkeypatch):
    code, out, _ = forerun("check-drafter", f"{repeat}:num_draft=1")
    assert code == 0, out
    assert out.count("holds ") == len(out.strip().splitlines()) == 11
    repeat.write_text(REPEAT.replace("min(budget, self.options.num_draft)", "3"))
    code, out, _ = forerun("check-drafter", repeat, "--json")
    document = the_json(out)
    assert code == 1
    assert not document["holds"]
    broken = [row for row in document["rows"] if not row["holds"]]
    assert [row["check"] for row in broken] == [
        "Drafts are trees of known tokens within their budgets"
    ]
    assert "its budget was" in broken[0]["broken"]
