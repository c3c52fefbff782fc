"""Parts of a model, each in a thread with memory that all share, compute what the whole model does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.batch import Batch, Segment
from forerun.model import packing
from forerun.model.backends import native
from forerun.model.config import ModelConfig
from forerun.model.random_model import random_config, random_weights, stored_floats
from forerun.parallel.head import SplitHead, num_floats
from forerun.parallel.split import Part, split
from forerun.parallel.tensor import PartDecoder

pytest.importorskip("forerun._native")

ROWS = 64
CHAIN = tuple(range(1, 13))
TREE = (-1, 0, 0, 1, 3, 2, 5, 5)


class Together:
    """All ranks of a model in this process."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        from forerun import _native

        self.config = config
        self.weights = {
            name: stored_floats(name, weight) for name, weight in random_weights(3, config).items()
        }
        self.parts = split(config, size)
        self.count = num_floats(config.hidden_size, [part.tokens for part in self.parts], ROWS)
        memory = np.zeros(_native.Ranks.nbytes(size, self.count), np.uint8)
        self.ranks = [_native.Ranks(r, size, self.count, memory, None) for r in range(size)]
        self.decoders = [self._decoder(part) for part in self.parts]
        self.caches = [decoder.new_cache(2, 128) for decoder in self.decoders]
        self.pool = ThreadPoolExecutor(size)
        for cache in self.caches:
            cache.open([0] * 40)
            cache.reserve(0, 64)

    def _decoder(self, part: Part) -> PartDecoder:
        decoder = PartDecoder(self.config, part)
        decoder.native.set_ranks(self.ranks[part.rank])
        cut = part.cut(self.weights.items(), self.config)
        packing.fill(decoder, cut, part.names(self.config))
        return decoder

    def each(self, work: Callable[[int], np.ndarray]) -> list[np.ndarray]:
        return list(self.pool.map(work, range(len(self.parts)), timeout=60))

    def forward(self, segment: Segment, rows: np.ndarray | None = None) -> list[np.ndarray]:
        """Every rank's hidden states."""
        tokens = list(segment.tokens[segment.first : segment.stop])
        inputs = self.decoders[0].embed(np.array(tokens)) if rows is None else rows
        width = self.config.hidden_size

        def work(rank: int) -> np.ndarray:
            hidden, aux = (
                np.empty((len(tokens), width), np.float32),
                np.empty((0, 1, width), np.float32),
            )
            given = inputs if rank == 0 else np.full_like(inputs, np.nan)  # theirs are not read
            self.decoders[rank].native.forward(
                self.caches[rank].native, [segment], given, hidden, [], aux
            )
            return hidden

        return self.each(work)


FAMILIES = {
    "llama": {},
    "gemma": {"norms": "both", "activation": "gelu_tanh", "attention_cap": 20.0, "logits_cap": 9.0},
    "granite": {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "norms": "before"},
    "cohere": {"norms": "parallel", "norm": "layer", "qk_norm": "each"},
    "qwen3": {"qk_norm": "head", "tied_head": False},
    "opt": {"rope": None, "learned_position_offset": 2, "norm": "layer", "gated_mlp": False},
}


def config_of(family: str) -> ModelConfig:
    return replace(random_config(vocab_size=90), intermediate_size=64, **FAMILIES[family])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_agree_to_the_bit_and_with_the_whole_model(family: str, size: int) -> None:
    config = config_of(family)
    together = Together(config, size)
    every = together.forward(Segment(0, 0, CHAIN))
    assert all(np.array_equal(every[0], other) for other in every)
    whole = native.load(config, together.weights, num_threads=1)
    hidden = whole.forward(Batch((Segment(0, 0, CHAIN),)), _opened(whole)).last
    assert np.allclose(every[0], hidden, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [2, 4])
def test_a_row_of_a_tree_has_the_bits_it_has_alone(size: int) -> None:
    together = Together(config_of("llama"), size)
    together.forward(Segment(0, 0, CHAIN))
    tokens = tuple(range(20, 28))
    whole = together.forward(Segment(0, 12, tokens, TREE))[0]
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path.insert(0, node)
            node = TREE[node]
        chain = tuple(tokens[i] for i in path)
        alone = [
            together.forward(Segment(0, 12, chain, None, i, i + 1))[0] for i in range(len(path))
        ]
        assert np.array_equal(alone[-1][0], whole[row])


@pytest.mark.parametrize("k", [1, 3, 60, 90])
@pytest.mark.parametrize("size", [2, 3])
def test_the_split_head_is_the_head(size: int, k: int) -> None:
    config = config_of("qwen3")
    together = Together(config, size)
    whole = native.load(config, together.weights, num_threads=1)
    hidden = np.random.default_rng(5).standard_normal((4, config.hidden_size)).astype(np.float32)
    hidden[1] = 0.0  # all logits are equal
    hidden[2] = np.nan
    logits = np.empty((4, 90), np.float32)
    wanted = whole.topk(hidden, k, log_normaliser=True, logits=logits)
    tokens = [part.tokens for part in together.parts]
    out = np.empty((4, 90), np.float32)
    found = {}

    def work(rank: int) -> np.ndarray:
        decoder = together.decoders[rank].native
        own = decoder.first_head_rows(len(tokens[0])) if rank == 0 else decoder
        head = SplitHead(_Group(rank, size, together), own, tokens)  # type: ignore[arg-type]
        rows = hidden if rank == 0 else np.zeros_like(hidden)
        found[rank] = head.topk(rows, k, True, True, out if rank == 0 else None)
        return hidden

    together.each(work)
    assert np.array_equal(found[0].ids, wanted.ids)
    assert np.array_equal(found[0].values, wanted.values, equal_nan=True)
    assert np.array_equal(out, logits, equal_nan=True)
    assert wanted.log_normaliser is not None
    assert np.allclose(found[0].log_normaliser, wanted.log_normaliser, equal_nan=True)


class _Group:
    """What `SplitHead` asks of a group."""

    def __init__(self, rank: int, size: int, together: Together) -> None:
        self.rank, self.size, self._ranks = rank, size, together.ranks[rank]

    def exchange(self, own: np.ndarray) -> np.ndarray:
        every = np.empty((self.size, own.size), np.float32)
        self._ranks.exchange(np.ascontiguousarray(own.reshape(-1)), every)
        return every


def _opened(model: native.NativeDecoder) -> object:
    cache = model.new_cache(2, 128)
    cache.open([0] * 40)
    return cache
