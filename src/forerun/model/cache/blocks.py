"""Blocks of cache rows: which are in use, and the prefix tree that finds them again by their tokens.

A block is `BLOCK_ROWS` rows of keys and values, known here by its number only. It is *free*, or
*used* by one or more sequences, or *idle*: no sequence uses it, but the tree knows its tokens, so
that a sequence that begins like an earlier one need not compute them again. The row law makes that
exact: a row has the same bits in every sequence. Idle blocks are given up, least recently used first,
when free ones run out.

The tree is the radix tree of SGLang (arXiv 2312.07104) with one block a node; blocks and copy on
write are those of PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

BLOCK_ROWS = 64
"""Rows of a block: the keys of one step of the native attention."""


def blocks_of(rows: int) -> int:
    """Return the blocks that so many rows take."""
    return -(-rows // BLOCK_ROWS)


@dataclass(slots=True, eq=False)
class Node:
    """A block by its tokens; its parent has those before them. Only a node of a whole block has children."""

    block: int
    tokens: tuple[int, ...]
    """At most BLOCK_ROWS, one a row from the block's first."""
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class BlockPool:
    """Blocks 0 to `num_blocks`, and the prefix tree over those whose tokens are known."""

    def __init__(self, num_blocks: int, block_nbytes: int = 1) -> None:
        self.num_blocks = num_blocks
        self.block_nbytes = block_nbytes
        self.most_used = 0
        """Blocks that sequences have used at once."""
        self.num_evicted = 0
        """Idle blocks given up so far because free ones had run out."""
        self.root = Node(-1, (), None)
        self.forgotten: Callable[[int], None] = lambda block: None
        """Called with a block whose tokens are no longer known."""
        self._free = [*range(num_blocks)]
        """A heap: the lowest is taken first, so that what is in use lies close together and in order."""
        self._ref_counts = [0] * num_blocks
        self._nodes: dict[int, Node] = {}
        self._idle: dict[int, None] = {}
        """Least recently used first. A child is always before its parent."""

    @property
    def num_free(self) -> int:
        """Blocks without contents."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that no sequence uses, but which may be found again: given up when needed."""
        return len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that sequences use; one that several share counts once."""
        return self.num_blocks - len(self._free) - len(self._idle)

    def take(self) -> int | None:
        """Return a block with one user, free or else the least recently used idle one; None if all are used."""
        if not self._free and not self.evict(1):
            return None
        block = heappop(self._free)
        self._ref_counts[block] = 1
        self.most_used = max(self.most_used, self.num_used)
        return block

    def evict(self, count: int) -> int:
        """Make up to `count` idle blocks free, least recently used first; return how many there were."""
        evicted = [*self._idle][:count]
        for block in evicted:
            self._forget(block)
            del self._idle[block]
            heappush(self._free, block)
        self.num_evicted += len(evicted)
        return len(evicted)

    def incref(self, block: int) -> None:
        """Count one more sequence that uses a block, which is used or idle."""
        if self._ref_counts[block] == 0:
            del self._idle[block]
            self.most_used = max(self.most_used, self.num_used)
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Count one user less of a sequence's last blocks, given in order: the last of them are evicted first."""
        for block in reversed([*blocks]):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            if block in self._nodes:
                self._idle[block] = None
            else:
                heappush(self._free, block)

    def find(self, tokens: Sequence[int]) -> tuple[list[Node], int]:
        """Return the nodes of the longest known prefix of `tokens`, of the last perhaps a part, and its length."""
        path: list[Node] = []
        node = self.root
        while child := node.children.get(tuple(tokens[len(path) * BLOCK_ROWS :][:BLOCK_ROWS])):
            if len(child.tokens) < BLOCK_ROWS:
                break
            path.append(child)
            node = child
        length = len(path) * BLOCK_ROWS
        rest = tokens[length : length + BLOCK_ROWS]
        best = max(
            node.children.values(), key=lambda c: common_prefix(c.tokens, rest), default=None
        )
        num_common = 0 if best is None else common_prefix(best.tokens, rest)
        if best is not None and num_common:
            path.append(best)
        return path, length + num_common

    def parting(self, tokens: Sequence[int]) -> int | None:
        """Return where a text parts from the known one that shares most with it.

        None if it goes on from that one's end, or shares less than a block with all.
        """
        path, length = self.find(tokens)
        num_whole, rest = divmod(length, BLOCK_ROWS)
        if not num_whole or length == len(tokens):
            return None
        common = tuple(tokens[num_whole * BLOCK_ROWS : length])
        others = path[num_whole - 1].children
        return length if any(o[:rest] == common and len(o) > rest for o in others) else None

    def insert(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """Enter a used block below `parent`, or the node that has these tokens already: look at its block."""
        if (known := parent.children.get(tokens)) is None:
            known = self._nodes[block] = parent.children[tokens] = Node(block, tokens, parent)
        return known

    def knows(self, node: Node) -> bool:
        """Return whether the node's block still has its rows: it has not been evicted."""
        return self._nodes.get(node.block) is node

    def claim(self, block: int, num_rows: int) -> bool:
        """Return whether its user may write rows of a block from row `num_rows` on; the tree must not know them.

        A block that the tree knows up to that row at most leaves the tree.
        """
        node = self._nodes.get(block)
        if self._ref_counts[block] != 1 or (node is not None and len(node.tokens) > num_rows):
            return False
        if node is not None:
            self._forget(block)
        return True

    def claim_all(self, block: int) -> bool:
        """Like `claim`, but the tree forgets what it knows of the block unless others build on it."""
        node = self._nodes.get(block)
        return self.claim(block, BLOCK_ROWS if node is None or not node.children else 0)

    def _forget(self, block: int) -> None:
        node = self._nodes.pop(block)
        self.forgotten(block)
        assert not node.children, "children are given up before their parents"
        assert node.parent is not None
        del node.parent.children[node.tokens]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
