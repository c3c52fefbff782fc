"""The KV cache: rows in blocks, shared between sequences, found again by their tokens.

A slot has a table of blocks: row r lies in row `r % BLOCK_ROWS` of block `table[r // BLOCK_ROWS]`.
Committed rows never change, so sequences share them: whole blocks for good, a block that is only in
part the same until one of its holders writes to it, who then copies it. Scratch rows above the
committed ones get blocks of their own when they are reserved, and give them back when they are not
kept: rewinding is one call. So a slot takes the memory of its rows, and an idle slot none.

Layers with a recurrent state have no rows in blocks: see `states.py`. Their sequences share whole blocks only, as
far as there is a checkpoint of the state.

Subclasses provide the memory, and know how rows lie in a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count, islice
from operator import eq, le

from forerun.core.batch import Batch
from forerun.core.errors import CapacityError
from forerun.model.cache.blocks import BLOCK_ROWS, BlockPool, Node, blocks_of, common_prefix
from forerun.model.cache.states import StateMemory, StateTable
from forerun.model.cache.tier import DiskTier


class KVCache(ABC):
    """Keys and values of `num_slots` sequences of at most `max_len` rows, one a token, in `num_blocks` blocks.

    Each slot has a committed length; a model writes scratch rows above it (row r of a segment at
    `length + r`), and `keep` commits the accepted ones. Rows that are not kept are overwritten by the next pass.

    A sequence is preempted by `close` and resumed by `open`: what has not been evicted meanwhile is found again.
    A fork is an `open` of the tokens of a running sequence.
    """

    def __init__(self, num_slots: int, max_len: int, num_blocks: int | None = None) -> None:
        """Take as many blocks as all slots can fill by default.

        Raises ValueError for fewer blocks than one sequence of `max_len` rows takes.
        """
        self.num_slots = num_slots
        self.max_len = max_len
        self.is_limited = num_blocks is not None
        """Whether the number of blocks was given; else it has as many as its slots can fill."""
        if num_blocks is None:
            num_blocks = num_slots * blocks_of(max_len)
        if num_blocks < blocks_of(max_len):
            raise ValueError(f"{num_blocks} blocks cannot hold a sequence of {max_len} rows")
        self.pool = BlockPool(num_blocks)
        self.states: StateTable | None = None
        """Recurrent states, if the model has any."""
        self.disk: DiskTier | None = None
        """Stores blocks on disk for other processes; None: nothing does."""
        self.draft_rows: int | None = None
        """The most rows of a draft, if there are recurrent states; they have room for no more."""
        self._disk_reads: list[Iterator[tuple[Node, bool]]] = [iter(()) for _ in range(num_slots)]
        """What is still to be read from disk of each slot."""
        self._lengths = [0] * num_slots
        self._free_slots = list(range(num_slots))
        """Least recently closed first."""
        self._tables: list[list[int]] = [[] for _ in range(num_slots)]
        self._nodes: list[list[Node]] = [[] for _ in range(num_slots)]
        """The prefix tree's nodes of the slots' first blocks: whole ones whose tokens are known."""
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]
        """What the slots' first rows are computed from, as far as it is known before they are closed."""

    def keep_states(self, memory: StateMemory, num_checkpoints: int, draft_rows: int) -> None:
        """Give each slot a recurrent state in `memory`, and keep so many checkpoints of them.

        There is room for `draft_rows` rows beyond a block beside a state.
        """
        self.states = StateTable(memory, self.num_slots, num_checkpoints)
        self.draft_rows = draft_rows
        self.pool.forgotten = self.states.forget

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block: keys and values of its rows of all layers."""
        return self.pool.block_nbytes

    def nbytes(self) -> int:
        """Return the bytes of all blocks and states; the system commits them as they are first written."""
        states = 0 if self.states is None else self.states.nbytes()
        return self.pool.num_blocks * self.block_nbytes + states

    def usage(self) -> float:
        """Return the share of the blocks that open slots use."""
        return self.pool.num_used / self.pool.num_blocks

    def open(
        self, tokens: Sequence[int], *, reuse: bool = True, spare: int = 0
    ) -> tuple[int, int] | None:
        """Return a slot for a sequence of these tokens, and how many rows of them it has already.

        With `reuse` those may be rows that earlier sequences computed, less than all tokens: one is
        left to compute; what is on disk comes by `read_from_disk`. None if no slot is free, or not
        the memory for the tokens' rows and `spare` blocks besides; a sequence that is alone always has it.
        """
        if not self._free_slots:
            return None
        nodes, table, length = self._find(tokens[:-1]) if reuse else ([], [], 0)
        for block in table:
            self.pool.incref(block)
        wanted = blocks_of(len(tokens)) - len(table) + spare
        is_alone = len(self._free_slots) == self.num_slots
        if wanted > self.pool.num_free + self.pool.num_idle and not is_alone:
            self.pool.release(table)
            return None
        slot = self._free_slots.pop(0)
        self._free_table(slot, 0)
        self._nodes[slot], self._tokens[slot] = nodes, list(tokens)
        for block in table:
            self._append(slot, block)
        if reuse and self.disk is not None:
            self._disk_reads[slot] = self.disk.read(nodes, self._tokens[slot])
        self._lengths[slot] = length
        if self.states is not None:
            self.states.open(slot, table[-1] if table else None, length)
        return slot, length

    def close(self, slot: int, tokens: Sequence[int], num_instructions: int = 0) -> None:
        """Free a slot whose rows were computed from `tokens`, which find them until they are evicted.

        The first `num_instructions` tokens come before a user's words.
        """
        if slot in self._free_slots:
            raise ValueError(f"slot {slot} is closed already")
        length = min(self._lengths[slot], len(tokens))
        self._lengths[slot], self._disk_reads[slot] = 0, iter(())
        self._free_slots.append(slot)
        self._tokens[slot] = list(tokens[:length])
        self._enter_whole_blocks(slot, length)
        num_full = len(self._nodes[slot])
        if self.states is not None:
            self.states.close(slot, self._block_of_state(slot))
        elif length > (start := num_full * BLOCK_ROWS):
            self._enter_last_block(slot, tuple(tokens[start:length]))
        if self.disk is not None:
            self.disk.keep(self._nodes[slot], num_instructions)
        self._free_table(slot, 0)

    def read_from_disk(self, slot: int, most_rows: int) -> int:
        """Read whole blocks of so many rows into a slot that nothing was computed in; return the rows that were read.

        Fewer than asked for: there are no more, and the slot's length says from where on rows are to be computed.
        """
        nodes, num_read = self._nodes[slot], 0
        for node, is_usable in islice(self._disk_reads[slot], blocks_of(most_rows)):
            self._free_table(slot, len(nodes))  # a block that was shared in part
            nodes.append(node)
            self._append(slot, node.block)
            num_read += BLOCK_ROWS
            if is_usable:
                length = self._lengths[slot] = len(nodes) * BLOCK_ROWS
                if self.states is not None:
                    self.states.open(slot, node.block, length)
        if num_read < most_rows:
            self._free_table(slot, blocks_of(self._lengths[slot]))  # those without a state
        return num_read

    def reserve(self, slot: int, rows: int) -> bool:
        """Return whether so many rows fit above the committed ones; if so, they are in blocks of this slot alone.

        If not, the slot has the blocks that it had before.
        """
        length, table = self._lengths[slot], self._tables[slot]
        stop, num_before = length + rows, len(table)
        index, num_rows = divmod(length, BLOCK_ROWS)
        if stop > self.max_len:
            return False
        is_ours = not (rows and num_rows) or self.pool.claim(table[index], num_rows)
        if not is_ours and not self._copy_on_write(slot, index):
            return False
        while len(table) * BLOCK_ROWS < stop:
            block = self.pool.take()
            if block is None:
                self._free_table(slot, num_before)
                return False
            self._append(slot, block)
        return True

    def free_rows(self, slot: int) -> int:
        """Return the rows above the committed ones in a slot's blocks."""
        return len(self._tables[slot]) * BLOCK_ROWS - self._lengths[slot]

    def length(self, slot: int) -> int:
        """Return the committed rows of a slot."""
        return self._lengths[slot]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Commit scratch rows `path` (ascending, counted from the committed length) in order.

        The other scratch rows are forgotten, and blocks of them alone are given back.
        Raises CapacityError for rows that do not exist.
        """
        base = self._lengths[slot]
        in_place = sum(map(eq, path, count()))  # if they ascend
        if in_place < len(path) and any(map(le, path, (-1, *path))):
            raise ValueError(f"a path must ascend from 0, got {list(path)}")
        if path and not self.reserve(slot, path[-1] + 1):
            raise CapacityError(
                f"cache row {base + path[-1]} of slot {slot} does not exist: "
                f"it has {self.max_len} rows"
            )
        if in_place < len(path):
            self._move(slot, [base + row for row in path[in_place:]], base + in_place)
        length = self._lengths[slot] = base + len(path)
        if length // BLOCK_ROWS > len(self._nodes[slot]):
            self._enter_whole_blocks(slot, length)
        if (len(self._tables[slot]) - 1) * BLOCK_ROWS >= length:
            self._free_table(slot, blocks_of(length))
        if self.states is not None:
            is_read = length >= len(self._tokens[slot])
            block = self._block_of_state(slot)
            if block is not None and self.states.is_due(slot, is_prompt_read=is_read):
                self.states.checkpoint(slot, block)

    def parts(self, batch: Batch, height: int) -> Iterator[Batch]:
        """Yield batches of at most `height` rows that together compute a pass, each once the one before is computed.

        Their rows are reserved first. Recurrent states are brought up to the rows before each batch: those that are
        committed or certain. Raises CapacityError if the rows do not fit.
        """
        for segment in batch.segments:
            stop = segment.base + segment.stop
            if not self.reserve(segment.slot, stop - self._lengths[segment.slot]):
                raise CapacityError(
                    f"{stop} rows do not fit a cache of {self.max_len}: "
                    "allow a longer context or stop earlier"
                )
        if self.states is None:
            yield from (batch,) if batch.num_rows <= height else batch.split(height)
            return
        for part in batch.split(height, BLOCK_ROWS):
            for s in part.segments:
                self.states.advance(s.slot, s.base + min(s.first, s.certain))
            yield part

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed rows from `length` on; a recurrent state only all of them, or rows since its last block."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot cut slot {slot} of {self._lengths[slot]} rows to {length}")
        if self.states is not None and length < self.states.rows[slot]:
            if length:
                raise ValueError(f"the recurrent state of slot {slot} is beyond {length} rows")
            self.states.clear(slot)
        self._lengths[slot] = length
        del self._tokens[slot][length:], self._nodes[slot][length // BLOCK_ROWS :]
        self._free_table(slot, blocks_of(length))

    def _find(self, tokens: Sequence[int]) -> tuple[list[Node], list[int], int]:
        """Return where a prefix of `tokens` is cached: the nodes of its whole blocks, all its blocks, its length."""
        path, length = self.pool.find(tokens)
        nodes = path[: length // BLOCK_ROWS]
        if self.states is not None:
            while nodes and not self.states.has(nodes[-1].block):
                del nodes[-1]
            return nodes, [node.block for node in nodes], len(nodes) * BLOCK_ROWS
        table, start = [node.block for node in path], len(nodes) * BLOCK_ROWS
        # The last block of a running sequence is not in the tree yet.
        for slot, path in enumerate(self._nodes):
            if path[: len(nodes)] != nodes:
                continue
            known = self._tokens[slot][start : min(self._lengths[slot], start + BLOCK_ROWS)]
            num_common = common_prefix(known, tokens[start:])
            if start + num_common > length:
                length = start + num_common
                table[len(nodes) :] = [self._tables[slot][len(nodes)]]
        return nodes, table, length

    def _enter_whole_blocks(self, slot: int, length: int) -> None:
        """Enter committed blocks whose tokens are known in the tree; one that it has already replaces ours."""
        nodes, tokens, table = self._nodes[slot], self._tokens[slot], self._tables[slot]
        while (stop := (len(nodes) + 1) * BLOCK_ROWS) <= min(length, len(tokens)):
            i = len(nodes)
            parent = nodes[-1] if nodes else self.pool.root
            node = self.pool.insert(parent, tuple(tokens[stop - BLOCK_ROWS : stop]), table[i])
            if node.block != table[i]:
                self.pool.incref(node.block)
                self.pool.release([table[i]])
                self._place(slot, i, node.block)
            nodes.append(node)

    def _block_of_state(self, slot: int) -> int | None:
        """Return the block that ends where the slot's recurrent state stands, if its tokens are known."""
        assert self.states is not None
        index = self.states.rows[slot] // BLOCK_ROWS - 1
        nodes = self._nodes[slot]
        return nodes[index].block if 0 <= index < len(nodes) else None

    def _enter_last_block(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Enter the rows of a block that is not full in the tree, unless it has them."""
        parent = self._nodes[slot][-1] if self._nodes[slot] else self.pool.root
        block = self._tables[slot][len(self._nodes[slot])]
        if any(known[: len(tokens)] == tokens for known in parent.children):
            return
        if self.pool.claim(block, len(tokens)):
            self.pool.insert(parent, tokens, block)

    def _copy_on_write(self, slot: int, index: int) -> bool:
        """Copy a block that other slots or the tree use; False if there is no block for a copy."""
        block, copy = self._tables[slot][index], self.pool.take()
        if copy is None:
            return self.pool.claim_all(block)
        self._copy_block(block, copy)
        self.pool.release([block])
        self._place(slot, index, copy)
        return True

    def _free_table(self, slot: int, num_blocks: int) -> None:
        """Give back a slot's blocks from number `num_blocks` on."""
        table = self._tables[slot]
        if len(table) > num_blocks:
            self.pool.release(table[num_blocks:])
            del table[num_blocks:]
            del self._nodes[slot][num_blocks:]

    def _append(self, slot: int, block: int) -> None:
        self._tables[slot].append(block)
        self._place(slot, len(self._tables[slot]) - 1, block)

    def _place(self, slot: int, index: int, block: int) -> None:
        """Make a block the one at `index` of a slot's table."""
        self._tables[slot][index] = block

    @abstractmethod
    def _copy_block(self, source: int, target: int) -> None:
        """Make the rows of one block those of another."""

    @abstractmethod
    def _move(self, slot: int, rows: Sequence[int], start: int) -> None:
        """Make rows start, start + 1, ... of a slot what `rows`, ascending and no lower, are."""
