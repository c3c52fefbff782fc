"""Whatever moment the processes that write into a folder are killed at, what is read from it is what was written."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.cache.folder import KV, PromptFolder
from forerun.model.cache.store import PromptStore, StoredBlock, StoredPart, finish_writing

NBYTES = 50_000
TEXTS, BLOCKS = 12, 6
LIMIT = TEXTS * BLOCKS * NBYTES // 2


def store_in(path: Path) -> PromptStore:
    folder = PromptFolder(path, LIMIT)
    folder.make()
    return PromptStore(folder, {}, {"model": "numbers"})


def blocks_of(text: int) -> list[StoredBlock]:
    """The blocks of a text, whose bytes follow from its tokens."""
    blocks = []
    for number in range(BLOCKS):
        data = np.random.default_rng((text, number)).integers(0, 256, NBYTES, dtype=np.uint8)
        blocks.append(
            StoredBlock((text, *[number] * (BLOCK_ROWS - 1)), [StoredPart(KV, data, lambda: True)])
        )
    return blocks


def write(path: Path) -> None:
    """Write texts until killed."""
    store = store_in(path)
    print("ready", flush=True)
    for text in itertools.cycle(random.sample(range(TEXTS), TEXTS)):
        store.keep(blocks_of(text))
        finish_writing()


def start(path: Path) -> subprocess.Popen[str]:
    code = f"from tests.model.cache.test_kills import *; write(Path({str(path)!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def check(path: Path) -> int:
    """Read all that there is; return how many blocks that were."""
    store, num_read = store_in(path), 0
    for text in range(TEXTS):
        blocks = blocks_of(text)
        tokens = [token for block in blocks for token in block.tokens]
        for (key, _), block in zip(store.chain(tokens), blocks, strict=True):
            data = np.zeros(NBYTES, np.uint8)
            if store.read(key, data, time.time_ns()):
                assert (data == block.parts[0].data).all()
                num_read += 1
    return num_read


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_wrong_is_read_after_kills_while_two_processes_write(kills, tmp_path) -> None:
    draw = random.Random(5)
    processes = [start(tmp_path), start(tmp_path)]
    num_read = 0
    try:
        for kill in range(kills):
            time.sleep(draw.uniform(0.0, 0.1))
            victim = processes[kill % 2]
            victim.kill()
            victim.communicate()
            num_read += check(tmp_path)
            processes[kill % 2] = start(tmp_path)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert num_read > kills
    folder = PromptFolder(tmp_path, LIMIT)
    assert sum(model.nbytes for model in folder.models()) <= LIMIT + 3 * NBYTES
