"""The Drafter protocol: five verbs and one number. A new method is one new file in this folder.

A drafter module exports `Options` (a frozen dataclass; its attribute docstrings are the CLI help) and
`build(options: Options, target: Target) -> Drafter`; nothing else is required. It may export
`tune(target, options, score) -> Options`, by which `forerun autotune` finds its best options (`_tuning.py`).
A drafter never sees the engine, the scheduler or the sampler;
of a sequence it reads `seq.id`, `seq.tokens`, `seq.num_prompt`, `seq.params`, `seq.seed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forerun.cache.base import KVCache
from forerun.core.types import Draft, Features, Outcome, Seq
from forerun.nn.model import Model

if TYPE_CHECKING:
    import torch


class Vocabulary(Protocol):
    """What a drafter may ask of a tokenizer: what a token id stands for."""

    vocab_size: int

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes a token stands for; None for an id the tokenizer does not know (padding)."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The narrow view of the target that a drafter is built with."""

    model: Model
    vocabulary: Vocabulary | None
    max_num_seqs: int
    max_len: int
    device: torch.device | str = "cpu"
    backend: str = "auto"
    """Where and on what the target runs; a draft model joins it there."""
    path: Path | None = None
    """The file or folder the target was loaded from, if it was."""
    weight_cache: bool = False
    """Whether packed weights are kept on disk."""
    cache: KVCache | None = None
    """The target's own cache, for drafters that draft with the target: `seq.slot` is a sequence's
    slot, rows above its committed length are free to write until the target's next pass."""


class Drafter(Protocol):
    """Guesses tokens. Never wrong, only more or less useful: the verifier decides.

    A drafter whose drafts carry `probs` says so with an attribute `draws = True`: with it, what a
    seeded request says depends on how much is drafted, so the controller leaves those requests alone.
    """

    features: Features

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """The prompt is in the target's cache, a first token in `seq.tokens`; again when a sequence comes back."""
        ...

    def propose(self, seqs: Sequence[Seq], budget: int) -> list[Draft]:
        """One tree a sequence below its last token, at most `budget` nodes each; may be empty."""
        ...

    def observe(self, seqs: Sequence[Seq], outcomes: Sequence[Outcome]) -> None:
        """What became of the drafts; `seq.tokens` already holds `outcome.emitted`."""
        ...

    def end(self, seq: Seq) -> None:
        """The sequence finished or was preempted: forget it. Harmless for an unknown one."""
        ...

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Bytes it will hold at most for that many sequences of that length, weights included."""
        ...
