"""The licences of prompts are noted beside the replies."""

from __future__ import annotations

import json

import pytest

from forerun.core.errors import ConfigError
from forerun.lab.train import sources

ROWS = [
    {"prompt": "a", "license": "MIT"},
    {"prompt": "b", "licence": "CC0-1.0"},
    {"prompt": "c"},
    {"prompt": "d", "license": "MIT"},
]


def test_every_prompts_licence_is_counted_and_noted_once(tmp_path) -> None:
    prompts, answers = tmp_path / "p.jsonl", tmp_path / "sub" / "a.jsonl"
    prompts.write_text("\n".join(map(json.dumps, ROWS)))
    assert sources.of_prompts(str(prompts), None).licences == {"MIT": 2, "CC0-1.0": 1, "unknown": 1}
    given = sources.of_prompts(str(prompts), "Apache-2.0")
    assert given.licences == {"MIT": 2, "CC0-1.0": 1, "Apache-2.0": 1}
    for source in (given, given, sources.of_prompts("builtin", None)):
        sources.note(answers, source)
    assert [each.file for each in sources.read(answers)] == ["p.jsonl", "builtin"]
    plain = tmp_path / "p.txt"
    plain.write_text("one\n\ntwo\n[3]\n")
    assert sources.of_prompts(str(plain), None).licences == {"unknown": 3}


def test_a_damaged_record_is_told(tmp_path) -> None:
    answers = tmp_path / "a.jsonl"
    assert sources.read(answers) == []
    sources.path_of(answers).write_text('[{"file": 1}]')
    with pytest.raises(ConfigError, match=r"a\.sources\.json is damaged"):
        sources.read(answers)
