"""Folders of the cache may hold anything: what is not a file of ours is passed over, wherever it is listed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.drafters.recycling import table_file
from forerun.hub import names
from forerun.model.cache.folder import PromptFolder
from tests.drafters.helpers import Words

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no links and pipes for everyone")

DIGEST, KEY = "a" * 40, "b" * 40


def loop(path: Path) -> None:
    path.symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


MADE: tuple[Callable[[Path], object], ...] = (loop, nowhere, Path.mkdir, os.mkfifo)


def prompts(root: Path) -> None:
    folder = PromptFolder(root / "prompts", 1 << 20)
    assert folder.make_room(1 << 30) == 0
    assert folder.models() == []
    assert folder.clear() == 0


def tables() -> None:
    assert table_file.load_known(Words(), None) is None


PLACES = {
    "a model's prompts": (f"prompts/{DIGEST}", prompts),
    "a block": (f"prompts/{DIGEST}/{KEY}.kv", prompts),
    "a state": (f"prompts/{DIGEST}/.{KEY}.state.x", prompts),
    "a table": ("tables/a.table", lambda root: tables()),
    "a model": ("models/a.gguf", lambda root: names.known_models()),
}


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_passed_over(place, make, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    name, use = PLACES[place]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    make(path)
    use(tmp_path)


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_commands_go_on_beside_it(place, make, tmp_path, monkeypatch, forerun) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    path = tmp_path / PLACES[place][0]
    path.parent.mkdir(parents=True)
    make(path)
    for command in (("models",), ("cache",), ("cache", "--clear")):
        assert forerun(*command)[0] == 0, command
