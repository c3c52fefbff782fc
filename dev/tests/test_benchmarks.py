"""Every file of benchmarks/ is named in its README, or in that of its folder: data that no page names go."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_file_of_measurements_is_named() -> None:
    manifest = (FOLDER / "README.md").read_text(encoding="utf-8")
    unnamed = [
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*")
        if path.is_file()
        and path.name != "README.md"
        and path.name not in manifest
        and not (path.parent / "README.md").exists()
    ]
    assert not unnamed, "name it under Data in benchmarks/README.md, or delete it"
