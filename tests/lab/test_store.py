"""The file that an interrupted run goes on from: nothing is lost, nothing is mixed."""

from __future__ import annotations

import json

import pytest

from forerun.core.errors import ConfigError
from forerun.lab.store import Store, read

ORIGIN = {"date": "today", "model": "m", "seed": 1}


def test_what_was_noted_is_there_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "new" / "run.jsonl"
    Store(ORIGIN, path).add("a", {"x": 1.5, "text": "ä\n\u2028"})
    again = Store(ORIGIN | {"date": "tomorrow"}, path)
    again.add("b", {"x": 2})
    known = {"a": {"x": 1.5, "text": "ä\n\u2028"}, "b": {"x": 2}}
    assert Store(ORIGIN, path).results == known
    assert read(path) == (ORIGIN, known)


def test_without_a_file_results_are_kept_in_memory():
    store = Store(ORIGIN)
    store.add("a", {"x": 1})
    assert store.results == {"a": {"x": 1}}


def test_of_a_key_that_was_noted_twice_the_later_result_counts(tmp_path):
    path = tmp_path / "run.jsonl"
    store = Store(ORIGIN, path)
    store.add("a", {"x": 1})
    store.add("a", {"x": 2})
    assert store.results == Store(ORIGIN, path).results == {"a": {"x": 2}}


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_line_that_was_cut_off_is_forgotten_and_written_anew(tmp_path, cut):
    path = tmp_path / "run.jsonl"
    store = Store(ORIGIN, path)
    store.add("b", {"x": 2})
    cut = min(cut, len(path.read_bytes()))
    path.write_bytes(path.read_bytes()[:-cut])
    again = Store(ORIGIN, path)
    assert again.results == {}
    again.add("b", {"x": 3})
    assert Store(ORIGIN, path).results == {"b": {"x": 3}}
    assert len(path.read_text().splitlines()) == 2


def test_a_reader_leaves_a_torn_line_to_its_writer(tmp_path):
    path = tmp_path / "run.jsonl"
    Store(ORIGIN, path).add("a", {"x": 1})
    path.write_text(path.read_text() + '{"key": "b", "x"')
    before = path.read_bytes()
    assert read(path) == (ORIGIN, {"a": {"x": 1}})
    assert path.read_bytes() == before


def test_another_runs_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "run.jsonl"
    Store(ORIGIN, path).add("a", {"x": 1})
    path.write_text(path.read_text() + "torn")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="seed 1 there, 2 here"):
        Store(ORIGIN | {"seed": 2}, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["no json\n", "[1]\n", '{"key": "a"}\n', "a sentence", '{"origin": 3}\n']
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.jsonl"):
        Store(ORIGIN, path)
    with pytest.raises(ConfigError, match=r"run\.jsonl"):
        read(path)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"origin": {}}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "run.jsonl"
    Store(ORIGIN, path).add("a", {"x": 1})
    path.write_text(path.read_text() + line + "\n" + json.dumps({"key": "b"}) + "\n")
    with pytest.raises(ConfigError, match="line 3 is"):
        Store(ORIGIN, path)


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot use"):
        Store(ORIGIN, tmp_path / "file" / "run.jsonl")
