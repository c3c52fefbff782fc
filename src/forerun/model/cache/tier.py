"""The second tier of a cache: blocks that the pool does not know are read from disk, those of closed slots kept there.

It moves bytes between a `PromptStore` and the memory of blocks and states; which are used is up to the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from forerun.model.cache.blocks import BLOCK_ROWS, BlockPool, Node
from forerun.model.cache.folder import KV, STATE
from forerun.model.cache.states import StateTable
from forerun.model.cache.store import STEP_NS, Bytes, PromptStore, StoredBlock, StoredPart


class DiskTier:
    """The disk below a pool of blocks, and below the states of recurrent layers if there are any."""

    def __init__(
        self,
        store: PromptStore,
        pool: BlockPool,
        states: StateTable | None,
        block_bytes: Callable[[int], Bytes],
        state_bytes: Callable[[int], Bytes],
        *,
        only_shared: bool = False,
    ) -> None:
        """`block_bytes` and `state_bytes` give the memory of a block and of a state, by number, to read and write.

        With `only_shared` just the instructions are kept that two conversations began with.
        """
        self._only_shared = only_shared
        self.store, self._pool, self._states = store, pool, states
        self._block_bytes, self._state_bytes = block_bytes, state_bytes
        self.rows_left = 1
        """Rows at the end of a text that are computed although they may be on disk."""

    def described(self) -> str:
        """Say what is kept, and where."""
        what = "instructions that conversations share" if self._only_shared else "prompts, answers"
        return f"kept on disk: {what}, in {self.store.folder.path} (--no-prompt-cache: nothing)"

    def keep(self, nodes: Sequence[Node], num_instructions: int = 0) -> None:
        """Have the blocks of a text written that are not on disk, and the checkpoints of states behind them.

        Its first `num_instructions` tokens are no user's words.
        """
        if self._only_shared:
            nodes = self._shared(nodes, num_instructions)
        self.store.keep([StoredBlock(node.tokens, self._parts(node)) for node in nodes])

    def read(self, nodes: Sequence[Node], tokens: Sequence[int]) -> Iterator[tuple[Node, bool]]:
        """Yield the nodes of the whole blocks of a text behind `nodes` that are on disk, each in use once more.

        Each is read when it is asked for. A sequence can go on behind those that come with True: behind all, or, with
        recurrent states, behind the last one, with the last state that is on disk.
        """
        text = tokens[: len(tokens) - self.rows_left]
        keys, now = [*self.store.chain(text)][len(nodes) :], time.time_ns()
        if self._states is not None:
            while keys and not self.store.has(keys[-1][0], STATE):
                keys.pop()
        parent = nodes[-1] if nodes else self._pool.root
        for index, (key, part) in enumerate(keys, len(nodes)):
            if (node := parent.children.get(part)) is not None:
                self._pool.incref(node.block)  # known, but without a state
            elif (node := self._read(parent, key, part, now - index * STEP_NS)) is None:
                return
            is_last = key == keys[-1][0]
            yield node, self._states is None or (is_last and self._read_state(node, key, now))
            parent = node

    def _shared(self, nodes: Sequence[Node], num_instructions: int) -> Sequence[Node]:
        """Return the blocks of instructions, if texts part behind them, or another process has met them, too."""
        told = nodes[: num_instructions // BLOCK_ROWS]
        if not told:
            return []
        has_parted = any(len(node.children) > 1 for node in nodes[len(told) - 1 :])
        tokens = [token for node in told for token in node.tokens]
        return told if has_parted or self.store.is_met_again(tokens) else []

    def _read(self, parent: Node, key: bytes, tokens: tuple[int, ...], used_ns: int) -> Node | None:
        if not self.store.has(key) or (block := self._pool.take()) is None:
            return None
        data = self._block_bytes(block)
        if self.store.read(key, data, used_ns):
            return self._pool.insert(parent, tokens, block)
        data[:] = 0  # a NaN would spread, even from rows that are not in use
        self._pool.release([block])
        return None

    def _read_state(self, node: Node, key: bytes, used_ns: int) -> bool:
        assert self._states is not None
        return self._states.restore(
            node.block, lambda state: self.store.read(key, self._state_bytes(state), used_ns, STATE)
        )

    def _parts(self, node: Node) -> list[StoredPart]:
        """Return what a block has, each part with a check that it is still there."""
        is_known = partial(self._pool.knows, node)
        parts = [StoredPart(KV, self._block_bytes(node.block), is_known)]
        if (
            self._states is not None
            and (checkpoint := self._states.checkpoint_of(node.block)) is not None
        ):
            is_same = partial(self._has, node, checkpoint)
            parts.append(StoredPart(STATE, self._state_bytes(checkpoint[0]), is_same))
        return parts

    def _has(self, node: Node, checkpoint: tuple[int, int]) -> bool:
        """Return whether a checkpoint is the same still."""
        assert self._states is not None
        return self._pool.knows(node) and self._states.checkpoint_of(node.block) == checkpoint
