"""Gemma 4's assistants: small checkpoints that guess from the target's own keys and values.

An assistant has queries alone: it reads the rows that the target has verified, and leaves none, so a draft costs no
memory and a prompt no second reading. The tree grows best first by its own probabilities and the sampler's noise; all
its rows stand at one position, so that branches cost nothing besides their steps.

Source: Gemma 4's assistants as transformers runs them (`models/gemma4_assistant`); a head cut by clusters of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import ConfigError
from forerun.core.types import Outcome, Seq
from forerun.drafters.base.contract import DrafterBytes, Method, Target, as_given
from forerun.drafters.base.draft_head import Scores, TextTokens, head_nbytes, list_of
from forerun.drafters.base.networks.network import LastStateNetwork, TakeSteps
from forerun.drafters.base.networks.options import NetworkOptions, in_int4
from forerun.drafters.base.networks.trained import UNTRAINED
from forerun.drafters.gemma4_assistant import files
from forerun.drafters.gemma4_assistant.network import AssistantLayers

if TYPE_CHECKING:
    from forerun._native import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which assistant, and how much it guesses."""

    model: str
    """The assistant: a folder, a GGUF file, a known name or a Hugging Face name."""


def build(options: Options, target: Target) -> Assistant:
    """Read the assistant. Raises LoadError for one of another target."""
    return Assistant(options, target)


def example(target: Target) -> Options:
    """Choose an assistant of random weights, which `check-drafter` needs no file for."""
    return Options(model=UNTRAINED, num_draft=12, min_chance=0, quant="none")


METHOD = Method(
    unshared=as_given,
    example=example,
    smaller=in_int4,
    grids={"num_draft": (2, 3, 4, 5, 7, 9), "num_steps": (1, 2, 3, 4, 5, 6)},
)


class Assistant(LastStateNetwork):
    """Keeps the target's last state of each sequence; all else is in the target's cache."""

    def __init__(self, options: Options, target: Target) -> None:
        super().__init__(options)
        if target.cache is None:
            raise ConfigError("an assistant reads the target's cache, and the target has none")
        self.cache, self.width = target.cache, target.model.config.hidden_size
        weights = files.read(options.model, target)
        self.layers = AssistantLayers(weights, target.model, options.quant)
        listed = list_of(options.draft_vocab, target, weights.config.vocab_size)
        if listed is not None:
            self.layers.cut(listed)
        self._text_tokens: dict[int, TextTokens] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Keep the state after the prompt."""
        super().begin(seq, outcome)
        if self.layers.listed is not None:
            self._text_tokens[seq.id] = self.layers.listed.new_text()

    def end(self, seq: Seq) -> None:
        """Drop the sequence's state and scored tokens."""
        super().end(seq)
        self._text_tokens.pop(seq.id, None)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the weights, copied rows of the head among them, and a state a sequence."""
        weights = self.layers.nbytes() + head_nbytes(self.layers.listed, num_seqs)
        return DrafterBytes(weights, tables=4 * num_seqs * self.width)

    def new_draft(self, seqs: Sequence[Seq], num_nodes: list[int]) -> TakeSteps:
        """Begin drafts, each of which starts from the target's last state."""
        for seq in seqs:
            if (text_tokens := self._text_tokens.get(seq.id)) is not None:
                text_tokens.read(seq.tokens)
        states: list[dict[int, Floats]] = []
        """By step and sequence: the state h after it."""

        def state_before(step: Step) -> Floats:
            if step.parent >= 0:
                return states[step.parent][step.sequence]
            return self.state_of(seqs[step.sequence])

        def take_steps(number: int, steps: Sequence[Step]) -> list[Scores]:
            here, tokens = [seqs[step.sequence] for step in steps], [step.token for step in steps]
            slots, before = [seq.slot for seq in here], np.stack([*map(state_before, steps)])
            rows, after = self.layers.step(self.cache, slots, tokens, before)
            states.append({s.sequence: h for s, h in zip(steps, after, strict=True)})
            texts = [self._text_tokens[seq.id] for seq in here if seq.id in self._text_tokens]
            return self.layers.scores(rows, texts)

        return take_steps
