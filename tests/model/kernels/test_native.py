"""Life without the native extension."""

from __future__ import annotations

import importlib

import pytest

from forerun.model.kernels import native
from forerun.system import device


def test_without_the_extension_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert not native.available()
    assert "not built" in (native.reason() or "")


def test_an_extension_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("GLIBCXX_3.4.32 not found")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert "GLIBCXX_3.4.32 not found" in (device.native_problem() or "")
