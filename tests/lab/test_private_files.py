"""What was said, and what was learned of it, is its owner's alone, whichever command writes it, also with umask 022."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.drafters.recycling import shared_replies
from forerun.system import files
from tests.cli.helpers import assert_private

SHORT = ("-c", 128, "-t", 1)
PUBLIC = ("models", "default")
"""Folders of models: copies of what everybody may fetch."""


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_replies, "replies", lambda: iter(["Hello world."]))
    return tmp_path / "cache"


WRITES = [
    ("train", "data", "-m", "MODEL", "--prompts", "PROMPTS", "--tokens", 40),
    ("train", "table", "-m", "MODEL", "--prompts", "PROMPTS", "--tokens", 40),
    ("tune", "MODEL", "--prompts", "PROMPTS", "--tokens", 40, "--limit", 1, "-n", 4),
    ("generate", "--raw", "-m", "MODEL", "Say hello. " * 8, "-n", 4, "--prompt-cache", "CACHE"),
]


@pytest.mark.parametrize("words", WRITES, ids=lambda words: " ".join(map(str, words[:2])))
def test_every_file_and_folder_is_private(forerun, tiny_gguf, cache, tmp_path, words):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Say hello.\nCount to ten.\nName a tree.\n")
    names = {"MODEL": tiny_gguf, "PROMPTS": prompts, "CACHE": cache / "prompts"}
    code, _, err = forerun(*(names.get(word, word) for word in words), *SHORT)
    assert code == 0, err
    assert_private(cache, *PUBLIC)


def test_folders_that_are_made_are_private_and_others_stay(tmp_path):
    tmp_path.chmod(0o755)
    files.make_folder(tmp_path / "a" / "b")
    assert_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    files.replace(tmp_path / "a" / "one", b"1")
    with files.open_private(tmp_path / "a" / "two", "a") as file:
        file.write("2")
    assert_private(tmp_path)
    files.replace(tmp_path / "model", b"3", mode=files.PUBLIC)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o644
