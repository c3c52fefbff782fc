"""Prompts of the package: the same files give the same ones, each once, and `forerun train table` reads them."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from dev import make_prompts
from forerun.hub.prompt_sets import read

LONG = " ".join(f"word{i}" for i in range(20_000))
ROWS = {
    "gpteacher": [{"id": f"g{i}", "turns": [f"Do {i}."], "response": "No."} for i in range(9)],
    "sgd_dialogues": [{"id": "s", "messages": ["Hello.", "What can I do?", "Nothing."]}],
    "wikipedia_sentences": [{"id": "w", "category": "wikipedia", "text": "A is B ."}],
    "openstax_textbooks": [
        {"id": "o", "category": "textbook", "title": "Trees", "text": LONG},
        *({"id": f"i{i}", "title": "Introduction", "text": "Few words."} for i in range(2)),
    ],
    "litbank_novels": [{"id": "l", "category": "fiction", "title": "A Tale", "text": LONG * 9}],
}


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(make_prompts, "SETS", dict.fromkeys(ROWS, (5, "MIT")))
    for name, rows in ROWS.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    make_prompts.main(tmp_path, tmp_path / "out.jsonl")
    return tmp_path / "out.jsonl"


def test_the_same_files_give_the_same_prompts_each_once(prompts, tmp_path) -> None:
    found = read(prompts)
    assert len({prompt.id for prompt in found}) == len(found)
    licences = {json.loads(line)["license"] for line in prompts.read_text().splitlines()}
    assert licences == {"MIT", make_prompts.OF_TITLES}
    again = tmp_path / "again.jsonl"
    make_prompts.main(tmp_path, again)
    assert again.read_text() == prompts.read_text()


def test_what_users_said_is_asked_and_of_texts_tasks_are_made(prompts) -> None:
    found = {prompt.id: prompt.turns for prompt in read(prompts)}
    assert found["s"] == ("Hello.",)
    assert sum(key.startswith("g") for key in found) == 5  # no more than were asked for
    assert found["w-0"][0].endswith("A is B .")
    assert sum(key.startswith("o-") for key in found) == 3
    assert sum(key.startswith("l-") for key in found) == make_prompts.MAX_EXCERPTS
    assert all(20 < len(found[key][0].split()) < 530 for key in found if key.startswith("l-"))
    topics = [turns[0] for key, turns in found.items() if key.startswith("topic-")]
    assert len(topics) == make_prompts.NUM_TOPICS
    assert all("Trees" in text or "A Tale" in text for text in topics)


def test_an_excerpt_keeps_its_lines() -> None:
    row = {"id": "r", "category": "technical", "text": "a  b\n\n    c" + " d" * 200}
    ((_, text),) = make_prompts.prompts_of(row, random.Random(0))
    assert "a  b\n\n    c d d" in text
