"""Where to cut the drafts of a batch: the nodes that add most to an objective, less what their rows cost together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

Increment = tuple[float, float, int, int, int]
"""The next nodes of a draft: what they add to the objective by the row, and together, their number, the sequence,
and how many nodes of its draft are kept with them."""
_ratio = itemgetter(0)


def best_cut(gains: Mapping[int, Sequence[float]], costs: Sequence[float]) -> dict[int, int]:
    """Return how many nodes of each draft to keep: by descending gain a row along the drafts' envelopes, the best.

    `gains` are of each draft's nodes, `costs[k]` is that of a pass with k nodes.

    >>> best_cut({7: [0.9, 0.1], 8: [0.5, 0.6]}, [1.0, 1.2, 1.4, 1.9, 2.9])
    {7: 1, 8: 2}
    """
    kept = dict.fromkeys(gains, 0)
    steps = [step for i, gain in gains.items() for step in envelope(i, gain)]
    steps.sort(key=_ratio, reverse=True)
    gain, added, best, most = 0.0, 0, 0.0, 0
    for num, step in enumerate(steps, 1):
        gain, added = gain + step[1], added + step[2]
        if (net := gain - (costs[added] - costs[0])) > best:
            best, most = net, num
    for _, _, _, i, stop in steps[:most]:
        kept[i] = stop
    return kept


def envelope(seq_id: int, gains: Iterable[float]) -> list[Increment]:
    """Return the steps along the concave envelope: nodes that gain little are judged with those that come after them.

    >>> [step[1:3] for step in envelope(0, [0.9, 0.1, 0.5])]
    [(0.9, 1), (0.6, 2)]
    """
    found: list[Increment] = []
    for stop, gain in enumerate(gains, 1):
        ratio, rows = gain, 1
        while found and ratio >= found[-1][0]:
            _, before, num, _, _ = found.pop()
            gain, rows = gain + before, rows + num
            ratio = gain / rows
        found.append((ratio, gain, rows, seq_id, stop))
    return found
