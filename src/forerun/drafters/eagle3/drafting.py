"""EAGLE-3 networks that draft: one decoder layer behind the target, with keys and values of its own.

`config.py` has the formulas; `csrc/drafters/eagle_network.cpp` computes them, with int8 activations.

R rows, D width, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.types import Features, Outcome, Seq
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafting.base import DrafterBytes
from forerun.drafting.networks.native import NativeNetwork, TrainedNetwork
from forerun.drafting.networks.network import MAX_STEPS
from forerun.model.backends.native import NativeDecoder
from forerun.model.cache.blocks import common_prefix
from forerun.model.model import Model

if TYPE_CHECKING:
    from forerun import _native
    from forerun._native import Partner

EagleWeights = TrainedNetwork[Eagle3Config]
_NATIVE = {
    "fc.weight": "fc",
    "midlayer.self_attn.q_proj.weight": "q",
    "midlayer.self_attn.k_proj.weight": "k",
    "midlayer.self_attn.v_proj.weight": "v",
    "midlayer.self_attn.o_proj.weight": "o",
    "midlayer.mlp.gate_proj.weight": "gate",
    "midlayer.mlp.up_proj.weight": "up",
    "midlayer.mlp.down_proj.weight": "down",
    "lm_head.weight": "head.0",
    "embed_tokens.weight": "emb.0",
    "midlayer.input_layernorm.weight": "input_norm",
    "midlayer.hidden_norm.weight": "hidden_norm",
    "midlayer.post_attention_layernorm.weight": "mlp_norm",
    "midlayer.self_attn.q_norm.weight": "q_norm",
    "midlayer.self_attn.k_norm.weight": "k_norm",
    "norm.weight": "norm",
    "input_norm.weight": "fc_norm",
    "fc_norm.0.weight": "fc_norm.0",
    "fc_norm.1.weight": "fc_norm.1",
    "fc_norm.2.weight": "fc_norm.2",
}


class EagleNetwork(NativeNetwork["_native.EagleNetwork"]):
    """Feeds the layer the target's states of every committed row; a slot a sequence. Raises LoadError."""

    def __init__(
        self, weights: EagleWeights, model: Model, num_slots: int, max_len: int, bits: int
    ) -> None:
        """Make the kernels, with a cache of so many slots of `max_len` rows."""
        c = weights.config
        super().__init__(
            model,
            lambda target: _kernels(c, target, num_slots, max_len),
            weights.packed(_NATIVE.__getitem__, bits),
            eps=c.rms_norm_eps,
            temperatures=weights.temperatures,
            takes_head=c.target_head,
        )
        self._row_nbytes = 4 * c.num_key_value_heads * c.head_dim  # fp16
        self.features = Features(layers=c.layers)
        self._free = [*range(num_slots)]
        self._slots: dict[int, int] = {}
        self._texts: dict[int, list[int]] = {}
        """By slot: the first token of a text, and those that its first rows have read, none of them missing."""
        self._complete = set[int]()
        """The slots in which no row is missing."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Feed the prompt's rows that the target computed; those of a reused prefix come from a slot that has them.

        Rows that no slot has are missing: the layer does not see them.
        """
        assert outcome.hidden is not None, "asked for by `features`"
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
        self._feed(seq, seq.tokens[-len(outcome.hidden) :], outcome.hidden)

    def partner(
        self,
        seqs: Sequence[Seq],
        num_nodes: list[int],
        num_steps: Sequence[int],
        min_doubt: float,
    ) -> Partner:
        """Begin drafts below the last token that each sequence's slot was fed."""
        return self.asked(num_steps, min_doubt, [self._slots[seq.id] for seq in seqs])

    def observe(self, seq: Seq, outcome: Outcome) -> None:
        """Feed the rows that are committed now, with the tokens that came after them."""
        assert outcome.hidden is not None, "asked for by `features`"
        self._feed(seq, outcome.emitted, outcome.hidden[[*outcome.committed_rows()]])

    def end(self, seq: Seq) -> None:
        """Give the slot back; its rows stay for a text that begins alike."""
        slot = self._slots.pop(seq.id, None)
        if slot is not None:
            self._free.insert(0, slot)  # taken last: its text is the most likely to go on

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, and keys and values of the rows."""
        rows = num_seqs * (max_len + MAX_STEPS)
        return DrafterBytes(self.native.nbytes(), rows * self._row_nbytes)

    def _take(self, wanted: int | None) -> int:
        """Take a free slot: the wanted one, if it is free."""
        slot = self._free[-1] if wanted is None or wanted not in self._free else wanted
        self._free.remove(slot)
        return slot

    def _feed(self, seq: Seq, tokens: Sequence[int], states: Floats) -> None:
        slot = self._slots[seq.id]
        self.native.feed(slot, list(tokens), np.ascontiguousarray(states, np.float32))
        if slot in self._complete:
            self._texts[slot] += tokens


def _kernels(
    c: Eagle3Config, target: NativeDecoder, num_slots: int, max_len: int
) -> _native.EagleNetwork:
    from forerun import _native

    kernels = _native.EagleNetwork(
        target.runtime,
        target.native,
        c.state_width,
        c.intermediate_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.norm_output,
        c.norm_before_residual,
        num_slots,
        max_len,
    )
    kernels.set_rope(c.rope.inverse_frequencies())
    return kernels
