"""The file that an interrupted evaluation goes on from."""

from __future__ import annotations

import pytest

from forerun.core.errors import ConfigError
from forerun.eval.journal import Journal

ORIGIN = {"date": "today", "model": "m", "seed": 1}


def test_what_was_noted_is_there_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "run.jsonl"
    Journal(ORIGIN, path).add("a", {"x": 1.5, "text": "ä\n\u2028"})
    again = Journal(ORIGIN | {"date": "tomorrow"}, path)
    again.add("b", {"x": 2})
    assert Journal(ORIGIN, path).results == {"a": {"x": 1.5, "text": "ä\n\u2028"}, "b": {"x": 2}}


def test_without_a_file_results_are_kept_in_memory():
    journal = Journal(ORIGIN)
    journal.add("a", {"x": 1})
    assert journal.results == {"a": {"x": 1}}


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_line_that_was_cut_off_is_forgotten_and_written_anew(tmp_path, cut):
    path = tmp_path / "run.jsonl"
    journal = Journal(ORIGIN, path)
    journal.add("a", {"x": 1})
    journal.add("b", {"x": 2})
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(ORIGIN, path)
    assert again.results == {"a": {"x": 1}}
    again.add("b", {"x": 3})
    assert Journal(ORIGIN, path).results == {"a": {"x": 1}, "b": {"x": 3}}


def test_another_runs_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "run.jsonl"
    Journal(ORIGIN, path).add("a", {"x": 1})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="seed 1 there, 2 here"):
        Journal(ORIGIN | {"seed": 2}, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"key": "a"}\n'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.jsonl"):
        Journal(ORIGIN, path)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot use"):
        Journal(ORIGIN, tmp_path / "no" / "folder.jsonl")
