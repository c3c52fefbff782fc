"""Networks with their own decoder layers: a cache slot for each sequence, prefilled with the target's states.

R rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.drafters.base.contract import DrafterBytes, Target
from forerun.drafters.base.networks.native import NativeNetwork
from forerun.drafters.base.networks.network import kv_nbytes
from forerun.drafters.base.networks.options import MAX_STEPS, NetworkOptions
from forerun.drafters.base.networks.trained import NetworkConfig, TrainedNetwork
from forerun.model.backends.native import NativeDecoder
from forerun.model.cache.blocks import common_prefix
from forerun.model.config import RopeConfig

if TYPE_CHECKING:
    from forerun import _native
    from forerun._native import Partner

Kernels = TypeVar("Kernels", bound="_native.LayeredNetwork")


class LayersConfig(NetworkConfig, Protocol):
    """What the configuration of such layers tells, besides what the kernels read of it."""

    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[int, ...]
    """Of the target, whose outputs are read."""

    @property
    def rope(self) -> RopeConfig:
        """Return the rotary embedding of their own heads."""
        ...


class SlotNetwork(NativeNetwork[Kernels]):
    """Feeds its layers the target's states of every committed row, with the tokens after them."""

    def __init__(
        self,
        options: NetworkOptions,
        trained: TrainedNetwork[Any],
        target: Target,
        new_kernels: Callable[..., Kernels],
        kind: str,
        *,
        num_layers: int = 1,
        slot_nbytes: int = 0,
    ) -> None:
        """Make the kernels, with a slot for each of the target's sequences, which takes `slot_nbytes` besides its rows.

        `new_kernels(runtime, decoder, config, num_slots, max_len)` makes them beside the target; of its `kind` they are
        on a device, if it is there.
        """
        config: LayersConfig = trained.config
        sizes = target.max_num_seqs, target.max_len

        def kernels(decoder: NativeDecoder) -> Kernels:
            made = new_kernels(decoder.runtime, decoder.native, config, *sizes)
            made.set_rope(config.rope.inverse_frequencies())
            return made

        super().__init__(
            options, target.model, kernels, trained, config.rms_norm_eps, (kind, config, *sizes)
        )
        self._slot_nbytes = slot_nbytes
        self._row_nbytes = 4 * num_layers * config.num_key_value_heads * config.head_dim  # fp16
        self.features = Features(layers=config.layers)
        self._free = [*range(target.max_num_seqs)]
        self._slots: dict[int, int] = {}
        self._texts: dict[int, list[int]] = {}
        """By slot: the first token of a text, and those after its first rows, none of them missing."""
        self._complete = set[int]()
        """The slots in which no row is missing."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Feed the prompt's rows that the target computed; those of a reused prefix come from a slot that has them.

        Rows that no slot has are missing: the layers do not see them.
        """
        assert outcome.hidden is not None, "asked for by `features`"
        self.end(seq)
        num_reused = len(seq.tokens) - 1 - len(outcome.hidden)
        # The last of these rows may have read another next token than this text's: close enough to guess with.
        rows = {
            slot: min(common_prefix(text, seq.tokens), len(text) - 1, num_reused)
            for slot, text in self._texts.items()
        }
        source = max(rows, key=lambda slot: rows[slot], default=None)
        num_rows = 0 if source is None else rows[source]
        self._slots[seq.id] = slot = self._take(source if num_rows else None)
        if source is not None and num_rows:
            self.native.reuse(slot, source, num_rows)
        else:
            self.native.clear(slot)
        self._texts[slot] = [*seq.tokens[: num_rows + 1]]
        self._complete.discard(slot)
        if num_rows == num_reused:
            self._complete.add(slot)
        self._prefill(seq, seq.tokens[-len(outcome.hidden) :], outcome.hidden)

    def partner(
        self,
        seqs: Sequence[Seq],
        num_nodes: list[int],
        num_steps: Sequence[int],
        min_doubt: float,
    ) -> Partner:
        """Begin drafts below the last token that each sequence's slot was prefilled with."""
        return self.asked(num_steps, min_doubt, [self._slots[seq.id] for seq in seqs])

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Feed the rows that are committed now, with the tokens that came after them."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            self._prefill(seq, outcome.emitted, outcome.hidden[[*outcome.committed_rows()]])

    def end(self, seq: Seq) -> None:
        """Give the slot back; its rows stay for a text that begins alike."""
        slot = self._slots.pop(seq.id, None)
        if slot is not None:
            self._free.insert(0, slot)  # taken last: its text is the most likely to go on

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, keys and values of the rows, and what else the slots have."""
        rows, tables = max_len + MAX_STEPS, num_seqs * self._slot_nbytes
        kv = num_seqs * rows * self._row_nbytes
        if self.on_device is not None:  # which has whole blocks
            kv = kv_nbytes(self.on_device.cache, num_seqs, rows)
        return DrafterBytes(self.native.nbytes(), kv, tables)

    def _take(self, wanted: int | None) -> int:
        """Take a free slot: the wanted one, if it is free."""
        slot = self._free[-1] if wanted is None or wanted not in self._free else wanted
        self._free.remove(slot)
        return slot

    def _prefill(self, seq: Seq, tokens: Sequence[int], states: Floats) -> None:
        slot = self._slots[seq.id]
        self.native.prefill(slot, list(tokens), np.ascontiguousarray(states, np.float32))
        if slot in self._complete:
            self._texts[slot] += tokens
