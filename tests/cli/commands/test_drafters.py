"""`forerun drafters`, for our drafters and others'."""

from __future__ import annotations

import pytest

from tests.cli.helpers import the_json
from tests.drafters.helpers import REPEAT


@pytest.fixture
def repeat(tmp_path):
    path = tmp_path / "repeat.py"
    path.write_text(REPEAT)
    return path


def test_the_options_of_a_drafter_are_shown(forerun, repeat):
    code, out, _ = forerun("drafters", "prompt-lookup")
    assert code == 0
    for word in (
        "prompt_lookup (forerun)",
        "ngram",
        "num_draft",
        "Tokens copied at most",
        "num_speculative_tokens",
    ):
        assert word in " ".join(out.split())
    code, out, _ = forerun("drafters", repeat, "--json")
    (doc,) = the_json(out)["drafters"]
    assert doc["origin"] == "file"
    assert doc["options"][0]["help"] == "Repetitions guessed."
    required = {
        (doc["name"], option["name"])
        for doc in the_json(forerun("drafters", "--json")[1])["drafters"]
        for option in doc["options"]
        if option["default"] is None
    }
    names = ("dflash", "draft_model", "eagle3", "gemma4_assistant", "medusa")
    assert required == {(name, "model") for name in names}
