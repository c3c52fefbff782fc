"""Prompt files are read line by line, whatever else looks like the end of a line."""

from __future__ import annotations

import json

import pytest

from forerun.core.errors import ConfigError
from forerun.eval.prompts import read


def test_unicode_line_separators_stay_inside_their_prompt(tmp_path):
    text = "one\u2028still one\u2029and\x0bon"
    path = tmp_path / "task.jsonl"
    path.write_text(json.dumps({"turns": [text]}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [prompt.turns for prompt in read(path)] == [(text,)]


@pytest.mark.parametrize("line", ["{", "[]", '{"turns": []}', '{"turns": [1]}'])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "task.jsonl"
    path.write_text('{"turns": ["good"]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        read(path)
