"""The token tree: the one thing drafters and the verifier exchange.

A tree is a parent array: node i hangs under `parents[i]`, which is smaller than i, or under the root (-1), the
last committed token. A chain is a tree; plain decoding is the empty tree; a batch is a list of trees.
Nothing here knows about tokens' meaning, models or probabilities.

N nodes of the tree, K depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Parents = Sequence[int]


def chain(length: int) -> tuple[int, ...]:
    """Return the parents of a chain of `length` nodes.

    >>> chain(3)
    (-1, 0, 1)
    """
    return tuple(range(-1, length - 1))


def depths(parents: Parents) -> list[int]:
    """Return the depth of every node; the root's children have depth 0.

    >>> depths((-1, 0, 0, -1))
    [0, 1, 1, 0]
    """
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Parents) -> dict[int, list[int]]:
    """Return the children of every node that has any, in node order; the root is -1."""
    result: dict[int, list[int]] = {}
    for i, parent in enumerate(parents):
        result.setdefault(parent, []).append(i)
    return result


def ancestors(parents: Parents) -> NDArray[np.bool_]:
    """Return a mask (N, N): entry [i, j] is true if j is i or an ancestor of i."""
    mask = np.zeros((len(parents), len(parents)), dtype=bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] = mask[parent]
        mask[i, i] = True
    return mask


def path_to(node: int, parents: Parents) -> list[int]:
    """Return the nodes from the root's child down to `node`, inclusive."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def path_products(parents: Parents, values: Sequence[float]) -> list[float]:
    """Return for each node the product of the values on the path to it, its own included.

    >>> path_products((-1, 0, -1), (0.5, 0.5, 0.75))
    [0.5, 0.25, 0.75]
    """
    result: list[float] = []
    for parent, value in zip(parents, values, strict=True):
        result.append(value * result[parent] if parent >= 0 else value)
    return result


def graft(
    tokens: Sequence[int], parents: Parents, more_tokens: Sequence[int], more_parents: Parents
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Add to a tree the nodes of another that it lacks, as (tokens, parents); paths with equal tokens are one.

    >>> graft((5, 6), (-1, 0), (5, 7), (-1, 0))
    ((5, 6, 7), (-1, 0, 0))
    """
    all_tokens, all_parents = [*tokens], [*parents]
    known: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(parents, tokens, strict=True)):
        known.setdefault(key, node)  # of children with one token the first, as the verifier does
    nodes = {-1: -1}
    for node, (parent, token) in enumerate(zip(more_parents, more_tokens, strict=True)):
        key = (nodes[parent], token)
        if key not in known:
            known[key] = len(all_tokens)
            all_tokens.append(token)
            all_parents.append(key[0])
        nodes[node] = known[key]
    return tuple(all_tokens), tuple(all_parents)


def from_paths(paths: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Merge token paths that start at the root into (tokens, parents), shared prefixes once.

    >>> from_paths([[5, 6], [5, 7], [8]])
    ((5, 6, 7, 8), (-1, 0, 0, -1))
    """
    tokens: list[int] = []
    parents: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for path in paths:  # not a graft a path, which would look through the whole tree each time
        node = -1
        for token in path:
            child = known.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                parents.append(node)
            node = child
    return tuple(tokens), tuple(parents)
