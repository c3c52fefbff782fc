"""A model whose tokenizer has no table has one made of the replies that ship, and guesses with it from then on."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun import LLM
from forerun.drafters import recycling
from forerun.drafters.base.contract import Target
from forerun.drafters.recycling import shared_replies, table_file
from forerun.engine import loaded
from tests.drafters.helpers import OURS, Words
from tests.drafters.test_recycling import begun, proposed
from tests.drafters.test_table_file import saved

pytest.importorskip("forerun._native")

REPLIES = ["1 2 3 4 5 6"] * 9


def encode(text: str) -> list[int]:
    return [*map(int, text.split())]


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, a package without tables, and few replies."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table_file.resources, "files", lambda package: tmp_path / "package")
    monkeypatch.setattr(shared_replies, "replies", lambda: iter(REPLIES))
    yield table_file.tables_dir()
    wait()


def wait() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("forerun-table"):
            thread.join()


def build(table: str = "auto", **given: object) -> recycling.Recycling:
    target = Target(None, Words(), max_num_seqs=1, max_len=64, **{"encode": encode} | given)
    return recycling.build(recycling.Options(table=table), target)


def draft(drafter: recycling.Recycling) -> list[int]:
    """What a new sequence's first draft holds; of its target nothing is known but the first token."""
    seq = begun(drafter, [30, 31, 1], 2)
    return list(proposed(drafter, seq, 3).tokens)


def test_a_table_is_made_while_requests_run_and_taken_by_the_next_one(tables) -> None:
    first, second = build(), build()
    assert first.table is None
    wait()
    assert [path.name for path in tables.iterdir()] == [f"{table_file.REPLIES}-{OURS}.table"]
    for drafter in (first, second, build()):
        assert draft(drafter) == [3, 4, 5]
        assert drafter.table is not None


def test_none_is_made_where_none_is_wanted_or_a_table_is_there(tables) -> None:
    assert draft(build("none")) == []
    assert draft(build(encode=None)) == []
    saved(tables / "a.table", model="other")
    build()
    wait()
    assert [path.name for path in tables.iterdir()] == ["a.table"]


def test_a_models_table_is_preferred_to_that_of_replies(tables) -> None:
    build()
    wait()
    other = saved(tables / "z.table", model="other")
    assert table_file.fitting_tables(Words(), None)[0] == other


def test_a_cache_that_cannot_be_written_stops_nothing(tables, caplog) -> None:
    tables.parent.write_text("")
    with caplog.at_level(logging.WARNING):
        drafter = build()
        wait()
        assert draft(drafter) == []
    (message,) = caplog.messages
    assert "no table of next tokens" in message


def test_a_program_that_ends_waits_for_no_reading(tables, monkeypatch) -> None:
    monkeypatch.setattr(shared_replies.background, "is_ending", lambda: True)
    build()
    wait()
    assert [*tables.iterdir()] == []


def test_a_broken_table_is_passed_over(tables, caplog) -> None:
    drafter = build()
    wait()
    (path,) = tables.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert draft(drafter) == []
    assert "is incomplete" in caplog.text


@pytest.mark.parametrize("given", [{}, {"memory_budget": "2GiB"}], ids=str)
def test_only_a_model_that_keeps_files_and_has_no_budget_reads_replies(
    tiny_gguf: Path, tables, monkeypatch: pytest.MonkeyPatch, given: dict[str, object]
) -> None:
    monkeypatch.setattr(shared_replies, "replies", lambda: iter(["Hello world. Hello world."]))
    with LLM(str(tiny_gguf), max_model_len=64, **given) as llm:
        assert llm.target().encode is None, "it is too small to be kept"
        monkeypatch.setattr(loaded, "LEAST_NBYTES", 0)
        llm.with_drafter("recycling")
        wait()
    assert tables.exists() == (not given)


def test_replies_ship() -> None:
    file = Path(shared_replies.__file__).parent / "shipped" / f"{table_file.REPLIES}.txt.gz"
    assert file.stat().st_size < 2e6
    texts = gzip.decompress(file.read_bytes()).decode().split("\0")
    assert len(texts) > 6000
    assert all(text and "<|im_" not in text for text in texts)
