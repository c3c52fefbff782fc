"""Scripted ways to draft for the toy: what the guesses are drawn from, and the shape they take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.random import Stream, uniform
from forerun.core.types import Draft, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.drafting.union import unite
from tests.decoding.toy import Drafting, Toy

Context = tuple[int, int]  # the last two tokens
Rows = Callable[[Context], Tensor]  # the draft's distribution (V,)


def near(toy: Toy) -> Rows:
    """A decent guesser: the target's logits with an error."""
    table = (toy.table + Toy(toy.vocab_size, seed=99, spread=1.0).table).softmax(-1)
    return lambda context: table[context]


def with_zeros(toy: Toy) -> Rows:
    """Knows half of the vocabulary; which half depends on the last token."""

    def row(context: Context) -> Tensor:
        probs = near(toy)(context).clone()
        probs[context[1] % 2 :: 2] = 0
        return probs / probs.sum()

    return row


def one_hot(toy: Toy) -> Rows:
    """Sure of one token, often wrongly."""
    return lambda context: torch.eye(toy.vocab_size)[sum(context) % toy.vocab_size]


def equal(toy: Toy, params: SamplingParams) -> Rows:
    """The target itself."""
    return lambda context: LogitsPipeline(params, context).probs(toy.logits(context), ())


def disjoint(toy: Toy, params: SamplingParams) -> Rows:
    """Exactly the tokens that the target never says."""

    def row(context: Context) -> Tensor:
        probs = (equal(toy, params)(context) == 0).float()
        return probs / probs.sum()

    return row


def point_chain(rows: Rows, depth: int = 3) -> Drafting:
    """The draft's favourite, again and again; chosen, not drawn."""
    return point_tree(rows, width=1, depth=depth)


def point_tree(rows: Rows, width: int = 2, depth: int = 2) -> Drafting:
    """The draft's favourites at every node; chosen, not drawn."""

    @cache
    def favourites(context: Context) -> list[int]:
        return rows(context).topk(width).indices.tolist()

    def draft(seq: Seq) -> Draft:
        paths: list[list[int]] = [seq.tokens[-2:]]
        for _ in range(depth):
            paths = [[*path, token] for path in paths for token in favourites((*path[-2:],))]
        return Draft(*tree.from_paths([path[2:] for path in paths]))

    return draft


def drawn_tree(rows: Rows, widths: Sequence[int], *, replace: bool) -> Drafting:
    """Children drawn from the draft's row: independently, or each without its earlier siblings."""

    @cache
    def sibling(context: Context, gone: tuple[int, ...]) -> tuple[Tensor, list[float]]:
        row = rows(context).clone()
        row[list(gone)] = 0
        return row / row.sum(), list(accumulate(row.tolist()))

    def draft(seq: Seq) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[Tensor] = []
        level = [(-1, (seq.tokens[-2], seq.tokens[-1]))]
        for width in widths:
            below = []
            for parent, context in level:
                gone: tuple[int, ...] = ()
                for _ in range(width):
                    row, sums = sibling(context, gone)
                    if not sums[-1]:
                        break
                    u = uniform(seq.seed, Stream.DRAFT, len(seq.tokens), len(tokens))
                    token = bisect_right(sums, u * sums[-1])
                    below.append((len(tokens), (context[1], token)))
                    tokens.append(token)
                    parents.append(parent)
                    probs.append(row)
                    gone = gone if replace else (*gone, token)
            level = below
        return Draft(tuple(tokens), tuple(parents), tuple(probs))

    return draft


def mixed(rows: Rows) -> Drafting:
    """One drawn child between two chosen ones."""
    drawn = drawn_tree(rows, (1,), replace=True)

    def draft(seq: Seq) -> Draft:
        middle = drawn(seq)
        assert middle.probs is not None
        return Draft((0, *middle.tokens, 3), (-1, -1, -1), (None, *middle.probs, None))

    return draft


def merged(rows: Rows) -> Drafting:
    """A drawn tree and, below and beside it, the favourites that are not in it; cut to seven nodes."""
    drawn, chosen = drawn_tree(rows, (2, 1), replace=False), point_tree(rows)
    return lambda seq: unite(drawn(seq), chosen(seq)).trim(7)
