"""`forerun bench share`: one document of this machine, with nothing of who or where."""

from __future__ import annotations

import getpass
import json
import platform

from dev.machines import HEAD, row
from forerun.lab.commands import bench_share
from tests.cli.helpers import the_json


def test_what_is_shared_is_shown_and_written_and_names_nobody(
    forerun, default_model, tmp_path, monkeypatch
) -> None:
    for name, value in (
        ("REPEATS", 1),
        ("LIMIT", 2),
        ("MAX_TOKENS", 4),
        ("CASES", "1,4,8,16,512@0"),
    ):
        monkeypatch.setattr(bench_share, name, value)
    out = tmp_path / "mine.json"
    code, text, said = forerun("bench", "share", "-m", default_model, "--out", out)
    assert code == 0
    assert "nothing was sent" in said
    document = the_json(text)
    assert document == json.loads(out.read_text())
    for word in (getpass.getuser(), platform.node(), str(tmp_path), platform.release()):
        assert f'"{word}' not in text
    cells = row(document)
    assert len(cells) == len(HEAD)
    assert cells[1] in document["isas"]["runnable"]
    assert {one["category"] for one in document["drafting"]} > {"all"}
