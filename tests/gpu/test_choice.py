"""Tokens that are chosen on the device are the CPU's: the largest logits, and those drawn with the sampler's noise."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from forerun import _native
from forerun.core.random import Noise
from forerun.gpu import choice
from forerun.gpu.choice import MOST_CHOSEN, _largest_ids, top_k
from forerun.gpu.numbers import LAUNCH, gumbel
from tests.gpu.oracle import DEVICE, same

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of e^logit may be infinite
V = 300  # it fills neither tile nor block
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


@triton.jit
def put(noises, tokens, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low, high = tl.load(noises), tl.load(noises + 1)
    words = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    tl.store(out + at, gumbel(tl.load(tokens + at), words[0], words[1]))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_noise_has_the_cpus_bits(seed: int) -> None:
    tokens = np.arange(1 << 16, dtype=np.int32) * 4099
    key = Noise(seed, stream=seed % 3).key(seed % 1000)
    expected, out = np.empty(len(tokens), np.float32), torch.zeros(len(tokens), device=DEVICE)
    _native.gumbel(key, tokens, expected)
    words = np.array([key], np.uint64).view(np.int32)
    given = (torch.from_numpy(each).to(DEVICE) for each in (words, tokens))
    put[(len(tokens) // 4096,)](*given, out, BLOCK=4096, **LAUNCH)
    assert same(out.cpu().numpy(), expected)


def rows(count: int, kind: str) -> np.ndarray:
    """Logits (count, V)."""
    random = np.random.default_rng(count)
    logits = random.normal(0, 4, (count, V)).astype(np.float32)
    if kind == "ties":
        return np.round(logits / 8) * np.float32(8)
    if kind == "alike":
        logits[:] = random.choice(np.array(SPECIAL[2:], np.float32), (count, 1))
    elif kind != "usual":
        where = random.random((count, V)) < (0.9 if kind == "mostly banned" else 0.01)
        logits[where] = -np.inf if kind == "mostly banned" else random.choice(SPECIAL, where.sum())
    return logits


def has_the_scores(room: ModuleType) -> bool:
    """Whether the eight largest scores of rows have the CPU's bits."""
    logits, noises = rows(6, "usual"), [(Noise(seed).key(9), 1 / 0.7) for seed in range(6)]
    record = torch.empty(6, 8, 2, dtype=torch.int32, device=DEVICE)
    words = torch.from_numpy(room._words(noises)).to(DEVICE)
    room._largest(torch.from_numpy(logits).to(DEVICE), 8, record, 0, words)
    scores, noise = logits * np.float32(1 / 0.7), np.empty(V, np.float32)
    for row, (key, _) in zip(scores, noises, strict=True):
        _native.gumbel(key, np.arange(V, dtype=np.int32), noise)
        row += noise
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :8]
    found = record.cpu().numpy()
    expected = np.take_along_axis(scores, ids, 1)
    return np.array_equal(found[..., 0], ids) and same(found[..., 1].view(np.float32), expected)


def test_scores_have_the_cpus_bits() -> None:
    assert has_the_scores(choice)


@pytest.mark.parametrize("kind", ["usual", "ties", "mostly banned", "special", "alike"])
def test_drawn_tokens_are_the_cpus(kind: str) -> None:
    """Of many seeds, positions and temperatures; where logits are not finite there is none."""
    logits = rows(24, kind)
    temperatures = (1e-5, 0.1, 0.7, 1.0, 1.5, 100.0)
    noises = [
        (Noise(seed, seed % 4).key(17 * seed), 1 / temperatures[seed % 6]) for seed in range(24)
    ]
    expected = [_native.draw(row, f, key) for row, (key, f) in zip(logits, noises, strict=True)]
    given = torch.from_numpy(logits).to(DEVICE)
    _, drawn = top_k(given, 1, log_normaliser=False, noises=noises)
    assert drawn == expected
    assert (-1 in expected) == (kind in ("special", "alike"))
    if kind == "usual":
        greedy, again = top_k(given, 3, log_normaliser=True, noises=[*noises[:-1], None])
        assert again[:-1] == expected[:-1]
        assert greedy.ids[:, 0].tolist() == logits.argmax(1).tolist()
        assert again != greedy.ids[:, 0].tolist()


@pytest.mark.parametrize("kind", ["usual", "ties", "mostly banned", "special", "alike"])
@pytest.mark.parametrize("k", [1, 6, MOST_CHOSEN + 1])
def test_the_largest_are_those_of_the_host(kind: str, k: int) -> None:
    """NaN comes first, and of equal ones the lowest id."""
    logits = rows(8, kind)
    found, _ = top_k(torch.from_numpy(logits).to(DEVICE), k, log_normaliser=False)
    expected = np.array([_largest_ids(row, k) for row in logits])
    assert np.array_equal(found.ids, expected)
    assert same(found.values, np.take_along_axis(logits, expected, 1))
