"""The file of measurements: nothing is lost, nothing is mixed, only whole rounds count."""

import json

import pytest

from forerun.bench.record import Record, provenance, read
from forerun.core.errors import ConfigError
from tests.bench.samples import ORIGIN, measured


def test_what_was_written_is_read_back(tmp_path):
    path = tmp_path / "run.jsonl"
    written = [
        measured("none", "a1", 1.25, accepted_by_depth=(3, 1), error=None),
        measured("peer plain", "a1", 0.0, peer="peer", error="it broke"),
    ]
    Record(ORIGIN, path).add(written)
    assert read(path) == (ORIGIN, written)
    assert all("provenance" in json.loads(line) for line in path.read_text().splitlines())


def test_a_round_is_whole_when_every_contender_was_measured_in_it(tmp_path):
    path = tmp_path / "run.jsonl"
    Record(ORIGIN, path).add([measured("none", "a1", 1.0)])
    again = Record(ORIGIN, path)
    assert again.has("a1", 0, ["none"])
    assert not again.has("a1", 0, ["none", "suffix"])
    assert not again.has("a1", 1, ["none"])


def test_a_round_that_is_measured_again_replaces_the_first(tmp_path):
    path = tmp_path / "run.jsonl"
    record = Record(ORIGIN, path)
    record.add([measured("none", "a1", 1.0)])
    record.forget("a1", 0)
    record.add([measured("none", "a1", 2.0), measured("suffix", "a1", 1.0)])
    assert [(m.contender, m.decode_s) for m in record.measurements] == [
        ("none", 2.0),
        ("suffix", 1.0),
    ]
    assert read(path)[1] == record.measurements


def test_another_runs_file_is_refused_naming_the_difference(tmp_path):
    path = tmp_path / "run.jsonl"
    Record(ORIGIN, path).add([measured("none", "a1", 1.0)])
    with pytest.raises(ConfigError, match="threads 1 there, 2 here"):
        Record({**ORIGIN, "threads": 2}, path)
    Record({**ORIGIN, "date": "another day"}, path)


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"provenance": {}}', '{"provenance": {}, "x": 1}']
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "run.jsonl"
    Record(ORIGIN, path).add([measured("none", "a1", 1.0)])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match="line 2 is no measurement"):
        read(path)


def test_provenance_says_what_figures_depend_on():
    found = provenance("m", "Q4_1", temperature=0)
    for key in (
        "date",
        "commit",
        "model",
        "quant",
        "cpu",
        "isa",
        "threads",
        "torch",
        "python",
        "temperature",
    ):
        assert key in found
