"""Tables as files: what was written is read; what is none is an error in a sentence, harmless where no one named it."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, LoadError
from forerun.drafters import recycling
from forerun.drafters.base.contract import Target
from forerun.drafters.base.ngram.token_table import PackedTable, pack
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.base.vocabulary import fingerprint
from forerun.drafters.recycling import table_file
from forerun.drafters.recycling.table_file import load, load_known, save
from forerun.hub import names
from tests.drafters.helpers import OURS, Words
from tests.oracles import ngram_model
from tests.oracles.token_table import FileTable, LiveTable, context_hashes

_native = pytest.importorskip("forerun._native")

ANSWER = (3, 4, 5, 6, 3, 4, 5, 7, 3, 4, 5, 6)


def made(
    token_nbytes: int = 2,
    answer: Sequence[int] = ANSWER,
    prompt: Sequence[int] = (1, 2),
    order: int = 3,
) -> PackedTable:
    """A table of all that the answer says after its last 1 to `order` tokens."""
    tokens = [*prompt, *answer]
    following: dict[int, Counter[int]] = defaultdict(Counter)
    for at in range(len(prompt), len(tokens)):
        for context in context_hashes(tokens[:at], order):
            following[context][tokens[at]] += 1
    counts = np.array([each.total() for each in following.values()])
    best = [each.most_common(4) + [(-1, 0)] * (4 - len(each)) for each in following.values()]
    follows, times = np.array(best)[:, :4].transpose(2, 0, 1)
    shares = np.rint(255 * times / counts[:, None]).astype(np.int64)
    hashes = np.array([*following], np.uint64)
    packed = pack(hashes, counts, follows, shares, token_nbytes)
    return PackedTable(*packed, order, token_nbytes, len(answer), len(counts))


def saved(path: Path, *, model: str = "tiny", vocabulary: str = OURS) -> Path:
    save(path, made(), model=model, vocabulary=vocabulary)
    return path


@pytest.fixture
def tables(tmp_path, monkeypatch) -> Path:
    """The folder of this machine's tables; the package brings none."""
    monkeypatch.setattr(table_file, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(table_file.resources, "files", lambda package: tmp_path / "package")
    (tmp_path / "tables").mkdir()
    return tmp_path / "tables"


def guesses(file, context: Sequence[int]) -> tuple[int, ...]:
    return _native.grow_tree(list(context), file, _native.LiveTable(3, 0), (), 4, 0.05)[0]


@pytest.mark.parametrize("token_nbytes", [2, 3])
def test_what_was_saved_is_loaded(tmp_path, token_nbytes: int) -> None:
    path, packed = tmp_path / "new" / "a.table", made(token_nbytes)
    save(path, packed, model="tiny", vocabulary=OURS)
    header, loaded = table_file.read_header(path), load(path, Words())
    assert (header.model, header.order, header.num_tokens) == ("tiny", 3, 12)
    assert header.num_contexts == packed.num_contexts > 0
    assert loaded.__sizeof__() == packed.nbytes
    assert path.stat().st_size <= packed.nbytes + table_file.HEAD_NBYTES
    assert guesses(loaded, [3]) == (4, 5, 6)
    assert [p.name for p in path.parent.iterdir()] == ["a.table"]


def test_a_table_of_the_whole_vocabulary_keeps_wide_tokens() -> None:
    packed = made(3, (150_000, 70_000, 150_000, 70_000, 150_000), (70_000,), 2)
    file = _native.FileTable(packed.offsets, packed.data, 3)
    assert guesses(file, [70_000])[:2] == (150_000, 70_000)


def rewritten(path: Path, **lies: object) -> None:
    """The same bytes below another header."""
    header, start = table_file._read_head(path)
    data = path.read_bytes()[start:]
    text = json.dumps(asdict(header) | lies).encode()
    padding = -(len(table_file._MAGIC) + len(text) + 1) % 64
    path.write_bytes(table_file._MAGIC + text + b" " * padding + b"\n" + data)


def damage(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


BROKEN: dict[str, Callable[[Path], object]] = {
    "torn": lambda p: damage(p, lambda d: d.pop()),
    "longer": lambda p: damage(p, lambda d: d.append(0)),
    "a torn header": lambda p: damage(p, lambda d: d.__delitem__(slice(60, None))),
    "empty": lambda p: p.write_bytes(b""),
    "foreign": lambda p: p.write_bytes(b"GGUF" * 1000),
    "a flipped bit": lambda p: damage(p, lambda d: d.__setitem__(-1, d[-1] ^ 1)),
    "missing": lambda p: p.unlink(),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "another version": lambda p: damage(p, lambda d: d.__setitem__(20, ord("2"))),
    "a list": lambda p: p.write_bytes(table_file._MAGIC + b"[1, 2]\n"),
    "no JSON": lambda p: p.write_bytes(table_file._MAGIC + b"\xff\xfe{\n"),
    "deep": lambda p: p.write_bytes(table_file._MAGIC + b"[" * 4000 + b"\n"),
    "crooked": lambda p: damage(p, lambda d: d.insert(30, ord(" "))),
    "other fields": lambda p: rewritten(p, colour="red"),
    "a text for a number": lambda p: rewritten(p, num_buckets="3"),
    "true for a number": lambda p: rewritten(p, num_buckets=True),
    "less than nothing": lambda p: rewritten(p, num_buckets=-1),
    "fewer buckets": lambda p: rewritten(p, num_buckets=0),
    "very many buckets": lambda p: rewritten(p, num_buckets=10**15),
    "more bytes": lambda p: rewritten(p, nbytes=10**9),
    "another checksum": lambda p: rewritten(p, checksum=1),
    "wider tokens": lambda p: rewritten(p, token_nbytes=4),
    "another vocabulary": lambda p: rewritten(p, vocabulary=fingerprint(Words("x"))),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_table_for_this_model_is_an_error(tmp_path, kind: str) -> None:
    path = saved(tmp_path / "a.table")
    BROKEN[kind](path)
    with pytest.raises(LoadError, match=r"a\.table") as caught:
        load(path, Words())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 220


def test_offsets_that_do_not_fit_are_an_error(tmp_path) -> None:
    path, packed = tmp_path / "a.table", made()
    packed.offsets[-1] += 1
    save(path, packed, model="tiny", vocabulary=OURS)
    with pytest.raises(LoadError, match="offsets"):
        load(path, Words())


@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_byte_that_changed_is_noticed(tmp_path_factory, offset: int, value: int) -> None:
    path = saved(tmp_path_factory.mktemp("flip") / "a.table")
    whole = path.read_bytes()
    offset = len(whole) - 1 - offset % (len(whole) - 1000)
    changed = whole[:offset] + bytes([value]) + whole[offset + 1 :]
    path.write_bytes(changed)
    if changed == whole:
        load(path, Words())
    else:
        with pytest.raises(LoadError):
            load(path, Words())


def build(table: str) -> recycling.Recycling:
    target = Target(None, Words(), max_num_seqs=1, max_len=64, path=Path("tiny.gguf"))
    return recycling.build(recycling.Options(table=table), target)


def test_a_table_is_found_by_its_tokenizer_and_that_of_the_model_is_preferred(tables) -> None:
    assert build("auto").table is None
    saved(tables / "a.table", model="other")
    saved(tables / "b.table", model="foreign", vocabulary=fingerprint(Words("x")))
    assert build("auto").table is not None
    assert build("none").table is None
    small = made(2, (2, 2, 2), (1,), 1)
    save(tables / "c.table", small, model="tiny", vocabulary=OURS)
    assert build("auto").table.__sizeof__() == small.nbytes
    (tables / "c.table").unlink()
    packaged = tables.parent / "package" / "shipped" / "z.table"
    save(packaged, small, model="other", vocabulary=OURS)
    assert build("auto").table.__sizeof__() > small.nbytes  # this machine's come first
    (tables / "a.table").unlink()
    assert build("auto").table.__sizeof__() == small.nbytes


@pytest.mark.parametrize("kind", ["torn", "foreign", "a flipped bit", "wider tokens"])
def test_a_broken_table_that_no_one_named_is_told_and_passed_over(
    tables, caplog, kind: str
) -> None:
    BROKEN[kind](saved(tables / "a.table"))
    good = saved(tables / "b.table", model="other")
    with caplog.at_level(logging.WARNING):
        assert build("auto").table is not None
    (message,) = caplog.messages
    assert "a.table" in message
    good.unlink()
    assert build("auto").table is None


def test_a_folder_that_cannot_be_read_stops_nothing(tables, monkeypatch, caplog) -> None:
    def broken(self: Path, pattern: str):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "glob", broken)
    assert load_known(Words(), None) is None
    assert "Permission denied" in caplog.text


def test_a_cache_that_is_a_file_stops_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    assert table_file.tables_dir() == names.cache_root() / "tables"
    load_known(Words(), None)


def test_a_named_table_that_cannot_be_read_is_told_before_a_model_is_loaded(tmp_path) -> None:
    path = tmp_path / "a.table"
    spec = {"drafter": f"recycling:table={path}"}
    with pytest.raises(LoadError, match=r"no such table: .*forerun train table"):
        DrafterSpec.of_config(EngineConfig(model="there is no such model", **spec))
    saved(path)
    DrafterSpec.of_config(EngineConfig(model="there is no such model", **spec))
    BROKEN["foreign"](path)
    with pytest.raises(LoadError, match="not a table"):
        DrafterSpec.of_config(EngineConfig(model="there is no such model", **spec))


def test_a_named_table_is_never_passed_over(tmp_path) -> None:
    path = saved(tmp_path / "a.table", vocabulary=fingerprint(Words("x")), model="other-1b")
    with pytest.raises(LoadError, match=r"tokenizer of other-1b .* forerun train table"):
        build(str(path))
    target = Target(None, None, max_num_seqs=1, max_len=64)
    with pytest.raises(ConfigError, match="tokenizer"):
        recycling.build(recycling.Options(table=str(path)), target)


def test_home_is_understood_in_a_path(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path / "a.table")
    assert build("~/a.table").table is not None


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    path = saved(tmp_path / "a.table")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_file.files.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        saved(path, model="new")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.table"]


@given(
    st.binary(max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8),
    st.sampled_from([2, 3]),
)
def test_any_bytes_are_read_within_their_bounds(body, cuts, contexts, token_nbytes) -> None:
    """And as by the oracle. Under `make sanitize` a byte beyond them ends the test."""
    cuts = sorted(cut for cut in cuts if cut <= len(body))
    offsets = np.array([0, *cuts, len(body)], np.uint32)
    data = np.array(bytearray(body), np.uint8)  # of its own: what lies behind it is not ours
    mine = FileTable(offsets, data, token_nbytes)
    theirs = _native.FileTable(offsets, data, token_nbytes)
    for context in contexts:
        tree = _native.grow_tree(context, theirs, _native.LiveTable(3, 0), (), 8, 0.001)
        assert tree == ngram_model.grow_tree(context, mine, LiveTable(3, 0), (), 8, 0.001)
        assert all(0 <= token < 1 << 24 for token in tree[0])
        assert all(0 < p <= 1 for p in tree[2])


@given(st.integers(0, 5), st.binary(max_size=12), st.integers(1, 4))
def test_an_entry_that_promises_more_than_there_is_is_none(context, body, more) -> None:
    (mark,) = context_hashes([context], 1)
    num = len(body) // 3 + more
    data = np.array(
        bytearray((mark & 0xFFFF).to_bytes(2, "little") + bytes([0, num]) + body), np.uint8
    )
    offsets = np.array([0, len(data)], np.uint32)
    assert FileTable(offsets, data, 2).find(mark) is None
    file = _native.FileTable(offsets, data, 2)
    assert _native.grow_tree([context], file, _native.LiveTable(1, 0), (), 8, 0.001)[0] == ()


def test_a_context_is_hashed_token_by_token_from_the_last() -> None:
    assert [*context_hashes([1, 2, 3], 2)] == [*context_hashes([9, 2, 3], 5)][:2]
    assert len({*context_hashes([1, 2, 3], 3), *context_hashes([3, 2, 1], 3)}) == 6
