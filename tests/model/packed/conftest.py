"""A cache of a test's own for packed weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.model.packed import file as packed


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache that takes small models, too, and that is written before a load returns."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed, "MIN_NBYTES", 0)
    monkeypatch.setattr(packed.PackedFile, "save_meanwhile", packed.PackedFile.save)
    return tmp_path / "cache" / "packed"
