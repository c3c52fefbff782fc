"""`forerun check-drafter`, for a drafter in a file."""

from __future__ import annotations

from forerun.lab.contract.contract import CHECKS
from tests.cli.helpers import the_json
from tests.drafters.helpers import REPEAT


def test_check_drafter_says_line_by_line_what_holds(forerun, tmp_path):
    repeat = tmp_path / "repeat.py"
    repeat.write_text(REPEAT)
    code, out, _ = forerun("check-drafter", f"{repeat}:num_draft=1")
    assert code == 0, out
    assert out.count("holds ") == len(out.strip().splitlines()) == len(CHECKS)
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
