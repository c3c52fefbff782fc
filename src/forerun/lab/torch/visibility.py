"""Which keys each row of a tile sees: the token tree turned into blocks of keys in ascending position.

Below `base` a position is the cache row of that number. Above it, a row's ancestors take the
following positions: in a chain again the row of that number, in a tree rows with gaps, gathered for
each tile row by itself. Either way a row reads the same keys in the same blocks as in a plain decode
of its path, which is half of the row law.

n rows of a segment in the tile, R = TILE.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.batch import Segment
from forerun.lab.torch.reference import KEY_BLOCK, TILE, KeyBlock


def key_blocks(
    segment: Segment, window: int | None, device: torch.device, *, sees_own: bool = True
) -> list[KeyBlock]:
    """Return the blocks the rows of `segment` (at most TILE) see, ascending; rows past the last see what the last sees.

    `window` is the number of positions a row sees, itself included. Unless it `sees_own`, a row sees nothing of its
    segment, where there is something before that.
    """
    last = np.minimum(np.arange(TILE), segment.num_rows - 1)
    positions = segment.positions()[last]  # (R,)
    newest = positions if sees_own else np.full_like(positions, max(segment.base - 1, 0))
    first = np.zeros_like(positions) if window is None else positions - window + 1
    first = np.minimum(first, newest)  # a row sees one key at least
    oldest = max(0, int(first.min()))
    blocks = []
    for block in range(oldest // KEY_BLOCK, int(newest.max()) // KEY_BLOCK + 1):
        keys = np.arange(block * KEY_BLOCK, (block + 1) * KEY_BLOCK)
        hidden = (keys > newest[:, None]) | (keys < first[:, None])  # (R, KEY_BLOCK)
        mask = torch.from_numpy(hidden).to(device) if hidden.any() else None
        rows: slice | Tensor = slice(int(keys[0]), int(keys[-1]) + 1)
        if sees_own and segment.parents is not None and keys[-1] >= segment.base:
            rows = torch.from_numpy(_gathered(segment, keys)).to(device)
        blocks.append(KeyBlock(rows, mask))
    return blocks


def _gathered(segment: Segment, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the cache rows (n, KEY_BLOCK) of the positions `keys` on each row's path; row 0 past its end."""
    visible = segment.visible()
    assert visible is not None
    rows = np.where(keys < segment.base, keys, 0)
    index = np.tile(rows, (segment.num_rows, 1))
    for row, seen in zip(index, visible, strict=True):
        path = segment.base + np.flatnonzero(seen)  # at positions base, base + 1, ...
        inside = (keys >= segment.base) & (keys < segment.base + len(path))
        row[inside] = path[keys[inside] - segment.base]
    return index
