"""What drafters say of their nodes: the chance that they state, against the share that the default model accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from statistics import fmean

import pytest

from forerun import LLM, SamplingParams
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.contract import Drafter

Judged = tuple[float | None, bool]
"""The stated chance of a node whose parent was right, and whether it was right itself."""


def matches(draft: Draft, tokens: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Every node whose parent is among the tokens, and whether it is."""
    depths = {-1: 0}  # of the nodes on the way
    for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if (depth := depths.get(parent, len(tokens))) < len(tokens):
            if token == tokens[depth]:
                depths[node] = depth + 1
            yield node, token == tokens[depth]


class Recorder(Drafter):
    """Passes all on to a drafter, and records what became of its nodes."""

    def __init__(self, drafter: Drafter) -> None:
        self.inner, self.nodes = drafter, list[Judged]()
        self.features, self.max_nodes = drafter.features, drafter.max_nodes
        self.begin, self.end = drafter.begin, drafter.end  # type: ignore[method-assign]
        self.propose, self.memory = drafter.propose, drafter.memory  # type: ignore[method-assign]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Compare the drafts with what came."""
        for draft, outcome in zip(drafts, outcomes, strict=True):
            stated = draft.confidence
            self.nodes += [
                (None if stated is None else stated[i], is_right)
                for i, is_right in matches(draft, outcome.emitted)
            ]
        self.inner.observe(seqs, drafts, outcomes)


@cache
def answered(model, drafter: str, temperature: float, max_tokens: int = 160) -> list[Judged]:
    """Answer two questions, drafting in full: the controller would correct what is stated."""
    llm = LLM(model, drafter=drafter, controller=False, max_model_len=512)
    recorder = Recorder(llm.engine.proposer.drafter)
    llm.engine.proposer.drafter = recorder
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=7)
    for question in ("Count to thirty.", "Name ten animals and say what each eats."):
        llm.chat([{"role": "user", "content": question}], params)
    return recorder.nodes


def said_and_accepted(nodes: list[Judged]) -> tuple[float, float]:
    return fmean(chance for chance, _ in nodes), fmean(is_right for _, is_right in nodes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_recycling_says_more_it_is_right_more_often(default_model, temperature):
    nodes = answered(default_model, "recycling", temperature)
    likely = [node for node in nodes if node[0] > 0.6]
    assert len(nodes) > 200
    assert len(likely) > 20
    assert 0 < said_and_accepted(nodes)[1] < said_and_accepted(likely)[1] < 1


def test_of_greedy_answers_recycling_says_about_what_becomes_of_its_nodes(default_model):
    said, accepted = said_and_accepted(answered(default_model, "recycling", 0.0))
    assert abs(said - accepted) < 0.15


def test_lookahead_states_no_chance(default_model):
    nodes = answered(default_model, "lookahead", 1.0, 48)
    assert {chance for chance, _ in nodes} == {None}
    assert {is_right for _, is_right in nodes} == {True, False}


def test_nodes_count_only_below_a_right_parent():
    recorder = Recorder(Drafter())
    draft = Draft((5, 6, 7, 8), (-1, -1, 1, 0), (0.5, 0.4, 0.9, 0.3))
    recorder.observe([], [draft], [Outcome((), (6, 9))])
    assert recorder.nodes == [(0.5, False), (0.4, True), (0.9, False)]
