"""Gemma 4's assistants: small checkpoints that guess from the target's own keys and values.

An assistant has queries alone: it reads the rows that the target has verified, and leaves none, so a draft costs no
memory and a prompt no second reading. The tree grows best first by its own chances and the sampler's noise; all its
rows stand at one position, so that branches cost nothing besides their steps.

Source: Gemma 4's assistants as transformers runs them (`models/gemma4_assistant`); a head cut by clusters of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import ConfigError
from forerun.core.types import LAST_ROW, Draft, Outcome, Seq
from forerun.drafters.gemma4_assistant import files
from forerun.drafters.gemma4_assistant.network import AssistantNetwork
from forerun.drafting.base import DrafterBytes, Method, Target, as_given
from forerun.drafting.best_first import Step
from forerun.drafting.draft_head import OwnTokens, Scores, list_of
from forerun.drafting.networks.drafter import committed_rows
from forerun.drafting.networks.folder import UNTRAINED
from forerun.drafting.networks.steps import CutOptions, StepDrafter, TakeSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CutOptions):
    """Which assistant, and how much it guesses."""

    model: str
    """The assistant: a folder, a GGUF file, a known name or a Hugging Face name."""


def build(options: Options, target: Target) -> AssistantDrafter:
    """Read the assistant. Raises LoadError for one of another target."""
    return AssistantDrafter(options, target)


def example(target: Target) -> Options:
    """Choose an assistant of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0, quant="none")


def smaller(options: Options) -> Options | None:
    """Round the assistant's weights to int4."""
    return None if options.quant == "int4" else replace(options, quant="int4")


METHOD = Method(
    unshared=as_given,
    example=example,
    smaller=smaller,
    grids={"num_draft": (2, 3, 4, 5, 7, 9), "num_steps": (1, 2, 3, 4, 5, 6)},
)


@dataclass(slots=True)
class Text:
    """What is kept of a sequence: rows of the target's last pass, which of them was committed last, its own tokens."""

    hidden: Floats
    row: int
    own: OwnTokens | None


class AssistantDrafter(StepDrafter):
    """Keeps the target's last state of each sequence; all else is in the target's cache."""

    features = LAST_ROW

    def __init__(self, options: Options, target: Target) -> None:
        super().__init__(options)
        if target.cache is None:
            raise ConfigError("an assistant reads the target's cache, and the target has none")
        self.cache, self.width = target.cache, target.model.config.hidden_size
        weights = files.read(options.model, target)
        self.network = AssistantNetwork(weights, target.model, options.quant)
        listed = list_of(options.draft_vocab, target.vocabulary, weights.config.vocab_size)
        if listed is not None:
            self.network.cut(listed)
        self._texts: dict[int, Text] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state after the prompt."""
        assert outcome.hidden is not None, "asked for by `features`"
        listed = self.network.listed
        own = None if listed is None else listed.new_text()
        self._texts[seq.id] = Text(outcome.hidden[-1:].copy(), 0, own)

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Keep the state of the last committed row, which the target's own token came of."""
        for seq, outcome in zip(seqs, outcomes, strict=True):
            assert outcome.hidden is not None, "asked for by `features`"
            text = self._texts[seq.id]
            text.hidden, text.row = outcome.hidden, committed_rows(outcome)[-1]

    def end(self, seq: Seq) -> None:
        """Drop the sequence's state."""
        self._texts.pop(seq.id, None)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, copied rows of the head among them, and a state a sequence."""
        listed = self.network.listed
        head = 0 if listed is None else listed.nbytes(num_seqs)
        return DrafterBytes(self.network.nbytes() + head, tables=4 * num_seqs * self.width)

    def _new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        texts = [self._texts[seq.id] for seq in seqs]
        for seq, text in zip(seqs, texts, strict=True):
            if text.own is not None:
                text.own.read(seq.tokens)
        states: list[dict[int, Floats]] = []
        """By step and sequence: the state h after it."""

        def take_steps(number: int, steps: Sequence[Step]) -> list[Scores]:
            before = [
                texts[s.sequence].hidden[texts[s.sequence].row]
                if s.parent < 0
                else states[s.parent][s.sequence]
                for s in steps
            ]
            slots = [seqs[step.sequence].slot for step in steps]
            tokens = [step.token for step in steps]
            found, after = self.network.step(self.cache, slots, tokens, np.stack(before))
            states.append({s.sequence: h for s, h in zip(steps, after, strict=True)})
            owns = (texts[step.sequence].own for step in steps)
            return self.network.scores(found, [own for own in owns if own is not None])

        return take_steps
