"""Drafters whose network is a decoder: trees grow in Python, and a step is a pass of one row a sequence.

What such networks share beside their trees: the tokens that their head is cut to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import ConfigError
from forerun.core.types import Seq
from forerun.drafting.best_first import (
    MAX_STEPS,
    DraftLimits,
    GuessTree,
    Step,
    grow,
    likeliest,
    models_of,
)
from forerun.drafting.draft_builder import Scores
from forerun.drafting.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafting.tree_noise import noise_below

if TYPE_CHECKING:
    from forerun._native import TextNGramModel

TakeSteps = Callable[[int, Sequence[Step]], Sequence[Scores]]
"""Takes a step's number, and for each sequence that takes part its token; returns what may follow each."""


class StepDrafter(NetworkDrafter):
    """Grows each tree best first; `_new_draft` computes the steps."""

    def _new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts of these sequences. Sets the nodes of one that cannot be drafted for to 0."""
        raise NotImplementedError

    def _trees(
        self, seqs: Sequence[Seq], num_nodes: Sequence[int], ngrams: TextNGramModel | None
    ) -> list[GuessTree]:
        wanted = [*num_nodes]
        take = self._new_draft(seqs, wanted)

        def take_steps(number: int, steps: Sequence[Step]) -> list[tuple[Ids, Floats]]:
            return [
                likeliest(scores.logits, step, scores.tokens, (1.0,))
                for scores, step in zip(take(number, steps), steps, strict=True)
            ]

        tokens, o = [seq.tokens[-1] for seq in seqs], self.options
        limits = DraftLimits(min(o.num_steps, MAX_STEPS), o.min_chance, o.min_doubt)
        noises = [noise_below(seq) for seq in seqs]
        known = models_of(ngrams)
        return grow(tokens, wanted, limits, MAX_STEPS, take_steps, known, noises=noises)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOptions(NetworkOptions):
    """Options of a network whose head is the target's, cut."""

    draft_vocab: str = "auto"
    """Tokens it may guess besides the text's own: a number, full, or auto: 32768 of a large vocabulary."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        text = self.draft_vocab
        if text not in ("auto", "full") and not (text.isdecimal() and int(text)):
            raise ConfigError(f"draft_vocab must be auto, full or a number from 1, got {text!r}")
