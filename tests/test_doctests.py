"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import forerun

ROOT = Path(forerun.__file__).parent
WITH_EXAMPLES = [
    ".".join(("forerun", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__init__.py"
    and path.relative_to(ROOT).parts[0] != "lab"
    and ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
