"""Drafters whose network is a decoder: trees grow in Python, and a step is a pass of one row a sequence.

What such networks share beside their trees: the tokens that their head is cut to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from forerun.core.errors import ConfigError
from forerun.core.types import Seq
from forerun.drafting.base import NGramKind
from forerun.drafting.best_first import (
    MAX_STEPS,
    DraftLimits,
    GuessTree,
    Step,
    grow,
    likeliest,
)
from forerun.drafting.draft_builder import Scores
from forerun.drafting.networks.drafter import NetworkDrafter, NetworkOptions
from forerun.drafting.ngram.ngram_model import AnyNGramModel, in_python
from forerun.drafting.tree_noise import noise_below
from forerun.model.kernels import native

TakeSteps = Callable[[int, Sequence[Step]], Sequence[Scores]]
"""Takes a step's number, and for each sequence that takes part its token; returns what may follow each."""


def ngram_kind() -> NGramKind:
    """Return the kind of n-gram model that a drafter of tables has here: such networks take either."""
    return "native" if native.available() else "python"


class StepDrafter(NetworkDrafter):
    """Grows each tree best first; `_new_draft` computes the steps."""

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__(options, ngram_kind())

    def _new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts of these sequences. Sets the nodes of one that cannot be drafted for to 0."""
        raise NotImplementedError

    def _trees(
        self, seqs: Sequence[Seq], num_nodes: Sequence[int], ngrams: AnyNGramModel | None
    ) -> list[GuessTree]:
        wanted = [*num_nodes]
        take = self._new_draft(seqs, wanted)

        def take_steps(
            number: int, steps: Sequence[Step]
        ) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [
                likeliest(scores.logits, step, scores.tokens, (1.0,))
                for scores, step in zip(take(number, steps), steps, strict=True)
            ]

        tokens, o = [seq.tokens[-1] for seq in seqs], self.options
        limits = DraftLimits(min(o.num_steps, MAX_STEPS), o.min_chance, o.min_doubt)
        noises = [noise_below(seq) for seq in seqs]
        known = in_python(ngrams)
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
