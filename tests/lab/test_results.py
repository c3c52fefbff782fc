"""The table of counted figures is read back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import results


def test_a_row_is_found_again_and_one_without_its_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- counted -->\n<!-- /counted -->\nafter\n")
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["results"])
    monkeypatch.setattr(results, "found", lambda model, folder: Path(model))
    counted = results.Count(1.5, 10, 5, True)
    monkeypatch.setattr(results, "count", lambda method, model, folder: counted)
    results.main()
    written = page.read_text()
    assert written.startswith("before\n<!-- counted -->\n")
    assert written.endswith("<!-- /counted -->\nafter\n")
    assert len(results.before()) == len(results.METHODS)
    assert "| 1.50 | 5 of 10 | yes |" in written

    monkeypatch.setattr(results, "found", lambda model, folder: None)
    results.main()
    assert page.read_text() == written

    monkeypatch.setattr(results, "found", lambda model, folder: Path(model))
    monkeypatch.setattr("sys.argv", ["results", "--check"])
    results.main()
    other = results.Count(1.4, 10, 4, True)
    monkeypatch.setattr(results, "count", lambda method, model, folder: other)
    with pytest.raises(SystemExit, match="the page says"):
        results.main()
    assert page.read_text() == written
