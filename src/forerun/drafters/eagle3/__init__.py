"""EAGLE-3: one decoder layer behind the target guesses from three of its hidden states, a token at a time.

The states of a low, a middle and a high layer go, with the next token, through one layer with keys and values of its
own: rows with the target's states are kept, guessed rows only for the draft they belong to. The tree grows best first
by the network's own distribution, calibrated by depth, and the sampler's noise.

Sources: Li et al., arXiv 2503.01840; the two norms of EAGLE-3.1, arXiv 2605.09992; trees by confidence: EAGLE-2,
arXiv 2406.16858.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.drafters.eagle3 import files, gguf
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafters.eagle3.drafting import native_eagle
from forerun.drafting.base import DrafterBytes, Method, Target, as_given
from forerun.drafting.best_first import MAX_STEPS, DraftRequest, GuessTree
from forerun.drafting.networks.drafter import NetworkDrafter, NetworkOptions, committed_rows
from forerun.drafting.networks.folder import UNTRAINED
from forerun.drafting.networks.native import NativeNetwork
from forerun.model.cache.blocks import common_prefix

if TYPE_CHECKING:
    from forerun import _native


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which network, and how much it guesses."""

    model: str
    """A folder of `forerun train drafter`, one of SafeAILab, vLLM or speculators, or a GGUF file of llama.cpp."""
    num_draft: int = 8
    """Nodes of a tree at most."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        file = _gguf(self.model)  # a wrong one is refused before a model is loaded
        if file is not None:
            gguf.check_file(file)
        else:
            files.check_folder(self.model)


def build(options: Options, target: Target) -> Eagle3Drafter:
    """Read the network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
    file = _gguf(options.model)
    weights = files.read(options.model, target) if file is None else gguf.read(file, target)
    limits = (target.max_num_seqs, target.max_len)
    network = native_eagle(weights, target.model, *limits, options.bits)
    return Eagle3Drafter(options, network, weights.config, *limits)


def check(options: Options, target: Target) -> None:
    """Compare the sizes and the tapped layers of a folder with the target's. Raises LoadError."""
    if options.model != UNTRAINED and _gguf(options.model) is None:
        files.check_target_of(options.model, target)


def _gguf(model: str) -> Path | None:
    path = Path(model).expanduser()
    return path if gguf.is_one(path) else None


def example(target: Target) -> Options:
    """Choose a network of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0)


METHOD = Method(
    check=check,
    unshared=as_given,
    example=example,
    grids={"num_draft": (2, 3, 4, 5, 6, 8), "num_steps": (1, 2, 3, 4, 5, 6)},
)


class Eagle3Drafter(NetworkDrafter):
    """Feeds the network the target's states of every committed row; a slot a sequence."""

    def __init__(
        self,
        options: Options,
        network: NativeNetwork[_native.EagleNetwork],
        config: Eagle3Config,
        num_slots: int,
        max_len: int,
    ) -> None:
        super().__init__(options)
        self.network, self.max_len = network, max_len
        self._row_nbytes = 4 * config.num_key_value_heads * config.head_dim  # fp16
        self.features = Features(layers=config.layers)
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
        self.end(seq)
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
            self.network.native.reuse(slot, source, num_rows)
        else:
            self.network.native.clear(slot)
        self._texts[slot] = [*seq.tokens[: num_rows + 1]]
        self._complete.discard(slot)
        if num_rows == num_reused:
            self._complete.add(slot)
        self._feed(seq, seq.tokens[-len(outcome.hidden) :], outcome.hidden)

    def _trees(self, seqs: Sequence[Seq], request: DraftRequest) -> list[GuessTree]:
        request.rows = [self._slots[seq.id] for seq in seqs]
        return self.network.draft(request)

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Feed the rows that are committed now, with the tokens that came after them."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            rows = committed_rows(outcome)
            self._feed(seq, outcome.emitted, outcome.hidden[[*rows]])

    def end(self, seq: Seq) -> None:
        """Give the slot back; its rows stay for a text that begins alike."""
        slot = self._slots.pop(seq.id, None)
        if slot is not None:
            self._free.insert(0, slot)  # taken last: its text is the most likely to go on

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, and keys and values of the rows."""
        rows = num_seqs * (max_len + MAX_STEPS)
        return DrafterBytes(self.network.nbytes(), rows * self._row_nbytes)

    def _take(self, wanted: int | None) -> int:
        """Take a free slot: the wanted one, if it is free."""
        slot = self._free[-1] if wanted is None or wanted not in self._free else wanted
        self._free.remove(slot)
        return slot

    def _feed(self, seq: Seq, tokens: Sequence[int], states: Floats) -> None:
        slot = self._slots[seq.id]
        self.network.native.feed(slot, list(tokens), np.ascontiguousarray(states, np.float32))
        if slot in self._complete:
            self._texts[slot] += tokens
