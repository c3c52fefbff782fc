"""Sequences without a model, the checks every draft must pass, and the tokens of a batch with a drafter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.base.vocabulary import fingerprint
from forerun.engine.stats import SpecStats
from tests.engine.harness import complete, engine_for

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)
TUTORIAL = Path(__file__).parents[2] / "docs" / "adding-a-drafter.md"
REPEAT, RECYCLING, BIGRAM = re.findall(
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
    """A tree within the budget, no token twice below one node."""
    assert len(draft) <= budget
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


def refusal(call: Callable[[], object]) -> str:
    """The line in which a call refuses what it was given to load."""
    with pytest.raises(LoadError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


ASKED = [[3, 5, 7, 9], [1, 4], [30, 31, 0], [7, 7, 8, 9, 10, 31, 0, 12, 5]]
WANTED = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=5, max_tokens=40, ignore_eos=True)


def decoded(
    target: Target, drafter: str | None, params: SamplingParams = WANTED
) -> tuple[list[list[int]], SpecStats]:
    """Tokens and counts of a batch over the target's cache with a drafter (None: without)."""
    built = Drafter() if drafter is None else DrafterSpec.of(drafter).build(target)
    engine = engine_for(target.model, built, cache=target.cache)
    return [run.seq.generated for run in complete(engine, ASKED, params)], engine.stats


def check_lossless(
    target: Target,
    drafters: Sequence[str],
    params: SamplingParams = WANTED,
    tau: float = 1.0,
    roomy: Target | None = None,
) -> None:
    """Drafters over a target's cache change no token of plain decoding; some guesses are right, some wrong.

    Plain decoding is that of a `roomy` target, if it is given: with keys and values of the same kind.
    """
    plain, _ = decoded(roomy or target, None, params)
    for drafter in drafters:
        drafted, stats = decoded(target, drafter, params)
        assert drafted == plain
        assert stats.drafted > stats.accepted > 0
        assert stats.emitted / stats.passes > tau
