"""Sequences without a model, the checks every draft must pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafting.vocabulary import fingerprint

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)
TUTORIAL = Path(__file__).parents[2] / "docs" / "adding-a-drafter.md"
REPEAT, RECYCLING = re.findall(
    r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL
)
"""The sources of the tutorial's drafters."""
NO_OUTCOME = Outcome(path=(), emitted=())


def sequence(tokens: Sequence[int], seq_id: int = 0, num_prompt: int | None = None) -> Seq:
    """A greedy sequence; the first `num_prompt` tokens (default: all but one) are its prompt."""
    num_prompt = max(1, len(tokens) - 1) if num_prompt is None else num_prompt
    seq = Seq(seq_id, list(tokens[:num_prompt]), GREEDY, seed=0)
    seq.tokens.extend(tokens[num_prompt:])
    return seq


def check_draft(draft: Draft, budget: int) -> None:
    """A well-formed tree within the budget, no token twice below one node."""
    assert len(draft) <= budget
    tree.check(draft.parents)
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft)


class Words:
    """A vocabulary."""

    def __init__(self, prefix: str = "", vocab_size: int = 130) -> None:
        self.prefix, self.vocab_size = prefix, vocab_size

    def token_bytes(self, token_id: int) -> bytes | None:
        return f"{self.prefix}{token_id}".encode() if token_id % 3 else None

    def is_special(self, token_id: int) -> bool:
        return False


OURS = fingerprint(Words())
"""The fingerprint of `Words`."""
