"""Scripted ways to draft for the toy: what the guesses are taken from, and the shape they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Seq
from forerun.drafters.base.union import unite
from tests.decoding.toy import Drafting, Toy

Context = tuple[int, int]  # the last two tokens
Rows = Callable[[Context], Floats]  # the draft's law (V,)


def near(toy: Toy) -> Rows:
    """A decent guesser: the target's logits with an error."""
    table = np.exp(toy.table + Toy(toy.vocab_size, seed=99, spread=1.0).table)
    table /= table.sum(-1, keepdims=True)
    return lambda context: table[context]


def point_chain(rows: Rows, depth: int = 3) -> Drafting:
    """The draft's favourite, again and again."""
    return point_tree(rows, width=1, depth=depth)


def point_tree(rows: Rows, width: int = 2, depth: int = 2) -> Drafting:
    """The draft's favourites at every node."""

    @cache
    def favourites(context: Context) -> list[int]:
        return np.argsort(-rows(context))[:width].tolist()

    def draft(seq: Seq) -> Draft:
        paths: list[list[int]] = [seq.tokens[-2:]]
        for _ in range(depth):
            paths = [[*path, token] for path in paths for token in favourites((*path[-2:],))]
        return Draft(*tree.from_paths([path[2:] for path in paths]))

    return draft


def noisy_tree(rows: Rows, params: SamplingParams, width: int = 2, depth: int = 2) -> Drafting:
    """The draft's favourites with the noise that the target's tokens will have."""

    def draft(seq: Seq) -> Draft:
        paths: list[list[int]] = [seq.tokens[-2:]]
        for level in range(depth):
            scores = []
            for path in paths:
                law = np.log(rows((path[-2], path[-1]))) / params.temperature
                noise = seq.noise.of(len(seq.tokens) + level, np.arange(len(law)))
                scores.append(np.argsort(-(law + noise))[:width].tolist())
            both = zip(paths, scores, strict=True)
            paths = [[*path, token] for path, tokens in both for token in tokens]
        return Draft(*tree.from_paths([path[2:] for path in paths]))

    return draft


def merged(rows: Rows, params: SamplingParams) -> Drafting:
    """A noisy tree and, below and beside it, the favourites that are not in it; cut to seven nodes."""
    noisy, plain = noisy_tree(rows, params), point_tree(rows)
    return lambda seq: unite(noisy(seq), plain(seq)).trim(7)
