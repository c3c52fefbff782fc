"""A grammar holds along every branch of a draft: constrained output is that of constrained plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.decoding.grammar import limit, with_forced
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.verify import verify
from tests.decoding import drafting
from tests.decoding.toy import (
    FALSE_ALARM,
    PROMPT,
    Drafting,
    Toy,
    exact_distribution,
    generate,
    no_draft,
    p_value,
    sample_many,
)

TOY = Toy()
V = TOY.vocab_size
NUM = 800
NEAR = drafting.near(TOY)
POINTS: dict[str, Callable[[drafting.Rows], Drafting]] = {
    "chain": drafting.point_chain,
    "tree": drafting.point_tree,
}
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(),
    "penalised": SamplingParams(temperature=0.8, frequency_penalty=0.7, top_p=0.9),
}


@dataclass(frozen=True)
class Automaton:
    """Per state the tokens it allows, each with the state after it; None ends the output."""

    table: tuple[dict[int, int | None] | None, ...]
    state: int = 0

    def allowed(self) -> NDArray[np.bool_] | None:
        row = self.table[self.state]
        return None if row is None else np.isin(np.arange(V), [*row])

    def allows(self, token: int) -> bool:
        row = self.table[self.state]
        return row is None or token in row

    def advance(self, token: int) -> Automaton | None:
        row = self.table[self.state]
        after = self.state if row is None else row.get(token)
        return None if after is None else replace(self, state=after)

    def forced(self) -> list[int]:
        found: list[int] = []
        state: Automaton | None = self
        while state is not None and len(found) < 2 * V:
            row = state.table[state.state]
            if row is None or len(row) > 1:
                break
            (token,) = row
            state = state.advance(token)
            if state is not None:
                found.append(token)
        return found


# 0 and 1 may come first; after a 0 all but 3, after a 1 only 2 and 3, and a 3 once in three tokens.
GRAMMAR = Automaton(({0: 1, 1: 2}, {0: 1, 1: 2, 2: 0}, {2: 0, 3: 1}))
ANYTHING = Automaton((None,))


def verified(
    params: SamplingParams, grammar: Automaton | None, draft: Draft, logits: Floats
) -> Outcome:
    seq = Seq(0, list(PROMPT), params, seed=0)
    return verify(
        seq,
        draft,
        logits,
        LogitsPipeline(seq.params, seq.tokens[: seq.num_prompt], noise=seq.noise, grammar=grammar),
    )


def holds(tokens: tuple[int, ...]) -> bool:
    state: Automaton | None = GRAMMAR
    for token in tokens:
        state = state.advance(token) if state else None
    return state is not None


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shape", POINTS)
def test_chosen_drafts_give_the_tokens_of_constrained_plain_decoding(
    setting: str, shape: str
) -> None:
    params, accepted, rejected, freed = SETTINGS[setting], 0, 0, 0
    for seed in range(20):
        toy = Toy(seed=seed)
        drafts = POINTS[shape](drafting.near(toy))
        plain = generate(toy, params, 12, no_draft, seed, grammar=GRAMMAR)
        sample = sample_many(toy, params, 12, drafts, 1, grammar=GRAMMAR, first_seed=seed)
        assert set(sample.counts) == {plain}
        assert holds(plain)
        accepted, rejected = accepted + sample.accepted, rejected + sample.rejected
        freed += not holds(generate(toy, params, 12, no_draft, seed))
    assert accepted > 20
    assert rejected > 20
    assert freed > 10, "without the grammar other tokens come"


@given(
    st.lists(st.integers(-3, 3), min_size=V, max_size=V),
    st.sampled_from([*SETTINGS.values(), SamplingParams(temperature=0.7, logit_bias={1: 2})]),
    st.integers(0, 2),
)
def test_the_best_of_the_allowed_is_taken_whether_the_mask_is_made_or_not(
    logits: list[int], params: SamplingParams, at: int
) -> None:
    """Equal logits among them: the lowest id is taken of those that the grammar allows."""
    row, state = np.array(logits, np.float32), replace(GRAMMAR, state=at)
    pipeline = LogitsPipeline(params, PROMPT, noise=Noise(5), grammar=state)
    ids = np.flatnonzero(pipeline.probs(row, [], state))
    scores = pipeline.adjusted(row, [], state)[ids] * np.float32(pipeline.factor)
    if not params.is_greedy:
        scores = scores + Noise(5).of(len(PROMPT), ids)
    assert pipeline.choose(row, [], state) == ids[scores.argmax()]


@pytest.mark.parametrize("setting", ["sampled", "penalised"])
def test_drafts_that_see_the_noise_follow_the_constrained_distribution(setting: str) -> None:
    params = SETTINGS[setting]
    drafts = drafting.noisy_tree(NEAR, params)
    sample = sample_many(TOY, params, 3, drafts, NUM, grammar=GRAMMAR)
    assert all(map(holds, sample.counts))
    assert sample.accepted > NUM / 4
    assert sample.rejected > NUM / 4
    exact = exact_distribution(TOY, params, 3, grammar=GRAMMAR)
    assert p_value(sample.counts, exact) > FALSE_ALARM
    free = exact_distribution(TOY, params, 3)
    assert p_value(sample.counts, free) < FALSE_ALARM


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_that_breaks_the_grammar_is_rejected(temperature: float) -> None:
    """The target is sure of 3, which the grammar does not allow at first."""
    logits = np.eye(V, dtype=np.float32)[[3, 3]] * 50
    params = SamplingParams(temperature=temperature)
    draft = Draft.chain([3])
    free = verified(params, None, draft, logits)
    assert free.emitted == (3, 3)
    bound = verified(params, GRAMMAR, draft, logits)
    assert bound.path == ()
    assert bound.emitted[0] in (0, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_every_branch_of_a_tree_has_its_own_state(first: int) -> None:
    """After 0 comes anything but 3, after 1 only 2 or 3, whichever branch was drafted first."""
    params = SamplingParams(temperature=0)
    tokens, parents = tree.from_paths([[0, 2], [1, 3]])
    logits = np.zeros((5, V), np.float32)
    logits[0, first] = 10
    logits[1:] = [0.0, 1, 2, 3]  # 3 where it is allowed, else 2
    outcome = verified(params, GRAMMAR, Draft(tokens, parents), logits)
    assert outcome.emitted == ((0, 2, 1) if first == 0 else (1, 3, 2))


def test_the_walk_ends_where_the_grammar_does() -> None:
    grammar = Automaton(({2: 1}, {3: None}))
    logits = np.zeros((5, V), np.float32)
    seq = Seq(0, list(PROMPT), SamplingParams(temperature=0), seed=0)
    pipeline = LogitsPipeline(
        seq.params, seq.tokens[: seq.num_prompt], noise=seq.noise, grammar=grammar
    )
    outcome = verify(seq, Draft.chain([2, 3, 1, 1]), logits, pipeline)
    assert outcome.emitted == (2, 3)
    assert outcome.path == (0,)
    seq.tokens += outcome.emitted
    with pytest.raises(ValueError, match="nothing after token 3"):
        verify(seq, EMPTY_DRAFT, logits[:1], pipeline)


def test_a_state_without_a_mask_allows_everything() -> None:
    params = SamplingParams(temperature=0.7)
    for seed in range(5):
        plain = generate(TOY, params, 8, no_draft, seed)
        assert generate(TOY, params, 8, drafting.point_tree(NEAR), seed, grammar=ANYTHING) == plain


def test_a_constrained_greedy_request_needs_its_logits() -> None:
    greedy = SamplingParams(temperature=0)
    assert LogitsPipeline(greedy).needs_only_argmax
    assert not LogitsPipeline(greedy, grammar=GRAMMAR).needs_only_argmax


# 0 or 1; after a 0 the tokens 2, 3, 2 are forced, after a 1 there is a choice again.
FORCING = Automaton(({0: 1, 1: 0}, {2: 2}, {3: 3}, {2: 0}))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The tokens from the root down to each node."""
    return {
        tuple(draft.tokens[i] for i in tree.path_to(node, draft.parents))
        for node in range(len(draft))
    }


@given(
    st.integers(0, 8).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n)))),
    st.data(),
)
def test_what_is_cut_is_what_the_grammar_forbids(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    tokens = tuple(data.draw(st.integers(0, V - 1)) for _ in parents)
    draft = Draft(tokens, parents, tuple(0.5 for _ in parents))
    kept = limit(draft, 8, GRAMMAR)
    assert paths(kept) == {path for path in paths(draft) if holds(path)}
    assert kept.confidence is not None


@given(
    st.lists(st.lists(st.integers(0, V - 1), max_size=4), max_size=4),
    st.integers(0, 12),
    st.integers(0, 6),
)
def test_forced_tokens_are_added_and_nothing_else(
    given_paths: list[list[int]], room: int, depth: int
) -> None:
    draft = limit(Draft(*tree.from_paths(given_paths)), 4, FORCING)
    longer = with_forced(draft, FORCING, room, depth)
    assert longer.trim(len(draft)) == Draft(draft.tokens, draft.parents)
    assert len(longer) <= max(room, len(draft))
    for path in paths(longer) - paths(draft):
        assert len(path) <= depth
        before: Automaton | None = FORCING
        for token in path[:-1]:
            before = before.advance(token) if before else None
        assert before is not None
        assert before.forced()[0] == path[-1]


def test_forced_tokens_hang_under_the_root_and_under_the_first_guesses() -> None:
    assert paths(with_forced(Draft.chain([1, 0]), FORCING, 9, 9)) >= {(1, 0, 2, 3, 2)}
    after_0 = FORCING.advance(0)
    assert after_0 is not None
    assert with_forced(EMPTY_DRAFT, after_0, 9, 9).tokens == (2, 3, 2)
    assert with_forced(Draft.chain([2]), after_0, 2, 9).tokens == (2, 3)
    assert with_forced(Draft.chain([2]), after_0, 9, 2).tokens == (2, 3)
