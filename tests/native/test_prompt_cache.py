"""Blocks and states from disk are, to the bit, what reading their tokens gives, on every instruction set."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from forerun import _native
from forerun.core.arrays import Floats
from forerun.core.batch import Segment
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.cache.folder import PromptFolder
from forerun.model.cache.native import NativeCache
from forerun.model.cache.store import PromptStore, finish_writing
from forerun.system import files
from tests.arrays import same_bits
from tests.native.models import KINDS, logits_of, native, random_weights, text

MAX_LEN = 1024
TEXT = text(200)


def store_in(folder: Path, identity: object = "a model", limit: int = 1 << 40) -> PromptStore:
    path = PromptFolder(folder, limit)
    path.make()
    return PromptStore(path, {"identity": identity}, {"model": "tiny", "kv": "fp16"})


def cache_on(model: NativeDecoder, store: PromptStore, kv: str = "auto", **options) -> NativeCache:
    cache = model.new_cache(2, MAX_LEN, kv, **options)
    cache.keep_on(store)
    return cache


def opened(cache: NativeCache, tokens: tuple[int, ...]) -> tuple[int, int]:
    """A slot, and how many rows of the tokens it has, those on disk included."""
    slot, _ = cache.open(tokens)
    cache.read_from_disk(slot, MAX_LEN)
    return slot, cache.length(slot)


def read(model: NativeDecoder, cache: NativeCache, tokens: tuple[int, ...]) -> tuple[int, Floats]:
    """Read a text as an engine does: rows that were there, and the last token's logits; the rows stay until evicted."""
    slot, length = opened(cache, tokens)
    for start in itertools.count(length, 50):
        part = tokens[start : start + 50]
        logits = logits_of(model, cache, Segment(slot, start, part, certain=len(part)))
        cache.keep(slot, range(len(part)))
        if start + 50 >= len(tokens):
            break
    cache.close(slot, tokens)
    return length, logits[-1:]


def kept(model: NativeDecoder, store: PromptStore, tokens=TEXT, kv: str = "auto") -> Floats:
    """Read a text anew, and wait until it is on disk; the last logits."""
    length, logits = read(model, cache_on(model, store, kv), tokens)
    assert length == 0
    finish_writing()
    return logits


@pytest.mark.parametrize(
    ("kind", "kv"),
    [
        *((kind, "auto") for kind in sorted(KINDS)),
        *(("q4", kv) for kv in ("fp32", "int8", "k8v4", "int4")),
    ],
)
def test_a_text_from_disk_has_the_bits_of_one_that_was_read(kind, kv, tmp_path) -> None:
    """With windows, shared keys, experts and states too; and once more with the states' checkpoints in memory."""
    config, dtype = KINDS[kind]
    model = native(config, dtype, 1)
    expected = kept(model, store_in(tmp_path), kv=kv)
    cache = cache_on(model, store_in(tmp_path), kv)
    for _ in range(2):
        length, logits = read(model, cache, TEXT)
        assert length == 192 if config.is_recurrent else 192 <= length < 200
        assert same_bits(logits, expected)
    length, logits = read(model, cache_on(model, store_in(tmp_path), kv), TEXT[:150])
    assert length == (0 if config.is_recurrent else 128)
    assert same_bits(logits, read(model, model.new_cache(2, MAX_LEN, kv), TEXT[:150])[1])


@pytest.mark.parametrize("kind", ["q4", "sandwich", "hybrid", "short", "alone", "latent"])
def test_instruction_sets_read_what_others_have_written(kind, tmp_path) -> None:
    config, dtype = KINDS[kind]
    weights = random_weights(config, dtype)
    models = {isa: load_native(config, weights, isa=isa) for isa in _native.runnable_isas()}
    expected = {isa: kept(model, store_in(tmp_path / isa)) for isa, model in models.items()}
    for writer, reader in itertools.permutations(models, 2):
        cache = cache_on(models[reader], store_in(tmp_path / writer))
        length, logits = read(models[reader], cache, TEXT)
        assert length == 192
        assert same_bits(logits, expected[reader])
        assert same_bits(logits, expected[writer])


def test_a_text_goes_on_from_disk_where_memory_ends(tmp_path) -> None:
    model = native(*KINDS["q4"])
    expected = kept(model, store_in(tmp_path), (*TEXT, *TEXT))
    cache = cache_on(model, store_in(tmp_path))
    cache.disk, disk = None, cache.disk
    read(model, cache, TEXT[:100])  # a block and a part of one, in memory
    cache.disk = disk
    slot, length = cache.open((*TEXT, *TEXT))
    assert length == 100
    assert cache.read_from_disk(slot, MAX_LEN) == 320  # the block that was there in part, too
    assert cache.length(slot) == 384
    cache.close(slot, (*TEXT, *TEXT))
    assert same_bits(read(model, cache, (*TEXT, *TEXT))[1], expected)


def test_what_differs_in_anything_is_not_found(tmp_path) -> None:
    model = native(*KINDS["q4"])
    kept(model, store_in(tmp_path))
    others = cache_on(model, store_in(tmp_path, "another"))
    assert read(model, others, TEXT)[0] == 0
    cache = cache_on(model, store_in(tmp_path))
    assert read(model, cache, (1 + TEXT[0], *TEXT[1:]))[0] == 0
    length, _ = read(model, cache, (*TEXT[:100], 76 - TEXT[100], *TEXT[101:]))
    assert length == 64


def test_a_block_behind_other_tokens_is_another_block(tmp_path) -> None:
    model, other = native(*KINDS["q4"]), text(200, 1)
    for tokens in (TEXT, other):
        kept(model, store_in(tmp_path), tokens)
    mixed = (*TEXT[:64], *other[64:])
    length, logits = read(model, cache_on(model, store_in(tmp_path)), mixed)
    assert length == 64
    assert same_bits(logits, read(model, model.new_cache(1, MAX_LEN), mixed)[1])


def damaged(data: bytes, how: int, random: np.random.Generator) -> bytes:
    at = int(random.integers(len(data)))
    match how % 5:
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]
        case 2:
            return data + b"x"
        case 3:
            return data[:at] + bytes(len(data) - at)
        case _:
            return random.bytes(len(data))


@pytest.mark.parametrize("kind", ["q4", "hybrid"])
def test_damage_of_any_kind_is_read_anew_and_mended(kind, tmp_path, caplog) -> None:
    model = native(*KINDS[kind])
    expected, random = kept(model, store_in(tmp_path)), np.random.default_rng(7)
    whole = {path: path.read_bytes() for path in tmp_path.glob("*/*.*") if path.suffix != ".json"}
    for how in range(60):
        victims = random.choice(sorted(whole), size=1 + how % 3, replace=False)
        for path in victims:
            path.write_bytes(damaged(whole[path], how, random))
        caplog.clear()
        store = store_in(tmp_path)
        length, logits = read(model, cache_on(model, store), TEXT)
        assert same_bits(logits, expected), how
        assert length < 192 or model.config.is_recurrent
        assert len(caplog.records) <= 1
        finish_writing()
        for path in set(victims):
            path.write_bytes(whole[path])


def test_files_of_other_blocks_and_of_other_versions_are_not_believed(tmp_path) -> None:
    model = native(*KINDS["q4"])
    expected = kept(model, store_in(tmp_path))
    first, second, *_ = sorted(tmp_path.glob("*/*.kv"))
    data = first.read_bytes()
    second.write_bytes(data)
    store = store_in(tmp_path)
    length, logits = read(model, cache_on(model, store), TEXT)
    assert length < 192
    assert same_bits(logits, expected)
    finish_writing()
    for path in tmp_path.glob("*/*.kv"):
        path.write_bytes(path.read_bytes()[:7] + b"\x07" + path.read_bytes()[8:])
    length, logits = read(model, cache_on(model, store_in(tmp_path)), TEXT)
    assert length == 0
    assert same_bits(logits, expected)


def test_blocks_that_are_given_up_while_they_wait_are_not_written_as_others(tmp_path) -> None:
    """A pool of few blocks, over which texts go faster than the disk takes them."""
    model, store = native(*KINDS["q4"]), store_in(tmp_path)
    texts = [text(180, seed) for seed in range(12)]
    expected = [read(model, model.new_cache(1, MAX_LEN), each)[1] for each in texts]
    cache = cache_on(model, store, num_blocks=16)
    for each in texts * 2:
        read(model, cache, each)
    assert cache.pool.num_evicted
    finish_writing()
    again = cache_on(model, store_in(tmp_path))
    for each, logits in zip(texts, expected, strict=True):
        assert same_bits(read(model, again, each)[1], logits)


def test_a_block_that_is_overwritten_while_it_waits_is_left_out(tmp_path) -> None:
    model, store = native(*KINDS["q4"]), store_in(tmp_path)
    cache = cache_on(model, store, num_blocks=16)
    store.keep, waiting = lambda blocks: queue.append(blocks), store.keep
    queue: list = []
    read(model, cache, TEXT)
    for seed in range(1, 8):
        read(model, cache, text(180, seed))
    store.keep = waiting
    store.keep(queue[0])
    finish_writing()
    assert not [*tmp_path.glob("*/*.kv")]


def test_the_limit_is_kept_and_beginnings_go_last(tmp_path) -> None:
    model = native(*KINDS["q4"])
    size = model.new_cache(1, MAX_LEN).block_nbytes + 40
    store = store_in(tmp_path, limit=10 * size)
    for seed in range(8):
        read(model, cache_on(model, store), text(200, seed))
        finish_writing()
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*.kv")) <= 10 * size
    held = len([*tmp_path.glob("*/*.kv")])
    found = []
    for seed in range(8):
        cache = cache_on(model, store_in(tmp_path))
        found.append(opened(cache, text(200, seed))[1])
    assert found[-1] == 192
    assert found[0] == 0
    assert sum(found) == held * 64  # none without those before it


def test_a_disk_that_is_slower_than_computing_is_left_alone(tmp_path) -> None:
    model, store = native(*KINDS["q4"]), store_in(tmp_path)
    store.learn(1000, 1e-9)
    kept(model, store)
    slow = store_in(tmp_path)
    length, logits = read(model, cache_on(model, slow), TEXT)
    assert length == 64  # then it is known what a block takes
    assert same_bits(logits, read(model, model.new_cache(1, MAX_LEN), TEXT)[1])


@pytest.mark.parametrize("kind", ["q4", "hybrid"])
@pytest.mark.parametrize("most", [1, 64, 65, 100])
def test_a_text_may_come_from_disk_in_parts(kind, most, tmp_path) -> None:
    """Beside one that is read, whose blocks come in between; closing it half way leaves what has come."""
    model = native(*KINDS[kind])
    expected = kept(model, store_in(tmp_path), (*TEXT, *TEXT))
    cache = cache_on(model, store_in(tmp_path))
    slot, _ = cache.open((*TEXT, *TEXT))
    assert cache.read_from_disk(slot, most) == -(-most // 64) * 64
    cache.close(slot, (*TEXT, *TEXT))
    slot, _ = cache.open((*TEXT, *TEXT))
    other, _ = cache.open(text(64, 3))
    while cache.read_from_disk(slot, most) >= most:
        logits_of(model, cache, Segment(other, 0, text(64, 3), certain=64))
    assert cache.length(slot) == 384
    rest = (*TEXT, *TEXT)[384:]
    logits = logits_of(model, cache, Segment(slot, 384, rest, certain=len(rest)))
    assert same_bits(logits[-1:], expected)


@pytest.mark.parametrize("missing", ["kv", "state"])
def test_a_damaged_file_of_a_hybrid_takes_no_checkpoint_that_is_needed(missing, tmp_path) -> None:
    """With one checkpoint for two slots."""
    config, dtype = KINDS["hybrid"]
    model = native(config, dtype, 1)
    expected = kept(model, store_in(tmp_path))
    for path in tmp_path.rglob(f"*.{missing}"):
        path.write_bytes(path.read_bytes()[:-1])
    cache = cache_on(model, store_in(tmp_path), num_checkpoints=1)
    read(model, cache, TEXT[:130])
    running, _ = cache.open(text(100, 7))
    logits_of(model, cache, Segment(running, 0, text(100, 7), certain=100))
    cache.keep(running, range(100))
    length, logits = read(model, cache, TEXT)
    assert length == 128  # those in memory
    assert same_bits(logits, expected)


@pytest.mark.parametrize("where", ["full", "gone", "broken"])
def test_a_disk_that_refuses_is_one_warning(where, tmp_path, caplog, monkeypatch) -> None:
    model, store = native(*KINDS["q4"]), store_in(tmp_path / "prompts")
    expected = read(model, model.new_cache(1, MAX_LEN), TEXT)[1]

    def refuse(*given, **named):
        raise OSError(28, "No space left on device")

    if where == "full":
        monkeypatch.setattr("forerun.system.files.replace", refuse)
    elif where == "gone":
        (tmp_path / "prompts").rmdir()
    else:
        (tmp_path / "prompts").rmdir()
        (tmp_path / "prompts").write_text("")
    for _ in range(3):
        assert same_bits(read(model, cache_on(model, store), TEXT)[1], expected)
        finish_writing()
    assert len(caplog.records) == 1
    assert "prompts are not kept" in caplog.text


def test_what_is_kept_is_its_owners_alone(tmp_path) -> None:
    kept(native(*KINDS["hybrid"]), store_in(tmp_path / "prompts"))
    found = [*(tmp_path / "prompts").rglob("*")]
    assert {path.suffix for path in found} == {"", ".kv", ".state", ".json"}
    for path in (tmp_path / "prompts", *found):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_limit_below_a_block_keeps_nothing_and_deletes_nothing(tmp_path) -> None:
    model = native(*KINDS["q4"])
    kept(model, store_in(tmp_path))
    before = {*tmp_path.glob("*/*.kv")}
    store = store_in(tmp_path, "another", limit=100)
    read(model, cache_on(model, store), TEXT)
    finish_writing()
    assert {*tmp_path.glob("*/*.kv")} == before


def test_the_end_of_a_process_waits_for_a_slow_disk_but_not_for_ever(tmp_path, monkeypatch) -> None:
    model, store, replace = native(*KINDS["q4"]), store_in(tmp_path), files.replace
    monkeypatch.setattr(files, "replace", lambda *a, **k: (time.sleep(0.05), replace(*a, **k)))
    read(model, cache_on(model, store), TEXT)
    finish_writing(0.0)
    assert len([*tmp_path.glob("*/*.kv")]) < 3
    finish_writing(10.0)
    assert len([*tmp_path.glob("*/*.kv")]) == 3
