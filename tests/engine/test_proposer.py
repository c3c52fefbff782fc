"""A drafter that raises ends no request and changes no token."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from forerun.core.config import EngineConfig
from forerun.core.types import Draft
from forerun.drafters.base.contract import Drafter
from forerun.drafters.base.union import Union
from forerun.engine.controller import Adaptive, Fixed
from forerun.engine.engine import Engine
from forerun.engine.proposer import MAX_ERRORS, is_own
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}


class Failing(Scripted):
    """Raises in one of its calls, from the `after`th of them on."""

    def __init__(self, verb: str, after: int = 0, times: int = 10**9):
        super().__init__(ANSWERS, lambda step: 2)
        self.verb, self.left, self.times = verb, after, times
        self.calls = 0

    def _call(self, verb):
        self.calls += 1
        if verb == self.verb:
            self.left -= 1
            if self.left < 0 and self.times:
                self.times -= 1
                raise RuntimeError("out of ideas")

    def begin(self, seq, outcome):
        self._call("begin")
        super().begin(seq, outcome)

    def propose(self, seqs, budgets):
        self._call("propose")
        return super().propose(seqs, budgets)

    def observe(self, seqs, drafts, outcomes):
        self._call("observe")
        super().observe(seqs, drafts, outcomes)

    def end(self, seq):
        self._call("end")
        super().end(seq)


class DraftModelUse(Adaptive):
    """Asks for as much as `Fixed`, so that nothing depends on the clock, and cuts as usual."""

    def budgets(self, steps, num_others=0, *, is_reading=False):
        super().budgets(steps, num_others, is_reading=is_reading)
        for step in steps:
            step.budget = self.longest


def guarded_engine(drafter, controller=None):
    """An engine that drafts in every step, so that nothing depends on the clock."""
    engine = engine_for(MODEL, drafter, controller=True)
    engine.proposer.controller = controller or Fixed(8)
    return engine


@pytest.mark.parametrize("verb", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("after", [0, 2])
def test_its_sequences_go_on_without_it(verb, after, caplog):
    engine = guarded_engine(Failing(verb, after))
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
    assert engine.stats.drafter_errors >= 1
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert [r.getMessage() for r in warnings] == [
        f"drafter Failing failed in {verb}: RuntimeError: out of ideas; going on without drafts"
    ]


def test_later_sequences_are_drafted_again_after_a_single_error():
    engine = guarded_engine(Failing("propose", times=1))
    complete(engine, LOOPING[:1], GREEDY)
    assert engine.stats.drafted == 0
    for _ in range(3):
        runs = complete(engine, LOOPING[:1], GREEDY)
        assert runs[0].seq.generated == ANSWERS[tuple(LOOPING[0])]
    assert engine.stats.accepted > 0
    assert engine.stats.drafter_errors == 1


def test_a_drafter_that_always_fails_is_given_up():
    drafter = Failing("propose")
    engine = guarded_engine(drafter)
    for _ in range(MAX_ERRORS + 2):
        complete(engine, LOOPING[:1], GREEDY)
    assert engine.stats.drafter_errors == MAX_ERRORS
    calls = drafter.calls
    complete(engine, LOOPING[:1], GREEDY)
    assert drafter.calls == calls


def test_without_the_controller_it_is_isolated_too():
    cache = MODEL.new_cache(2, 256)
    engine = Engine(MODEL, cache, Failing("propose"), EngineConfig(controller=False))
    runs = complete(engine, LOOPING[:1], GREEDY)
    assert runs[0].seq.generated == next(iter(ANSWERS.values()))
    assert engine.stats.drafter_errors == 1


WRONG = [
    (None, "propose returned None instead of a Draft"),
    ([5, 6], "propose returned a list instead of a Draft"),
    (Draft.chain([1] * 9), "a draft has 9 nodes, its budget was 8: draft.trim(budget) cuts it"),
    (Draft.chain([24]), "token 24 is not in the vocabulary of 24"),
    (Draft.chain(np.array([1, 2])), "a draft's token is an int64 instead of an int"),
    (Draft((1, 2), (-1, 0.0)), "a draft's parent is a float instead of an int"),
    (Draft((1,), (-1,), np.array([0.5])), "a draft's confidence is a ndarray instead of a tuple"),
    *(
        (Draft((1, 2), (-1, 0), (0.5, p)), f"confidence is {p!r}, which is not a probability")
        for p in (1.5, -0.1, -5, math.nan, math.inf, -math.inf, None, "x", np.float32(2))
    ),
]


class Wrong(Scripted):
    """Returns what it is told."""

    wrong = None

    def propose(self, seqs, budgets):
        return [self.wrong for _ in seqs]


def wrong(draft):
    drafter = Wrong(ANSWERS, lambda step: 2)
    drafter.wrong = draft
    return drafter


class Ours(Wrong):
    """As if forerun's."""

    __module__ = "forerun.drafters.ours"


def test_a_token_outside_the_vocabulary_is_found_whoever_drafts_it(caplog):
    """A table or a network in a file can hold any."""
    drafter = Ours(ANSWERS, lambda step: 2)
    drafter.wrong = Draft.chain([24])
    assert is_own(drafter)
    runs = complete(guarded_engine(drafter), LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
    (warning,) = {record.getMessage() for record in caplog.records}
    assert "drafter Ours: token 24 is not in the vocabulary of 24" in warning


def test_a_plug_in_stays_one_in_a_union():
    own, foreign = Drafter(), wrong(Draft.chain([1]))
    assert is_own(Union(own, own))
    assert not is_own(Union(own, foreign))
    assert not is_own(foreign)


@pytest.mark.parametrize(("draft", "message"), WRONG)
@pytest.mark.parametrize("build", [wrong, lambda draft: Union(Drafter(), wrong(draft))])
def test_what_is_no_draft_is_told_in_a_sentence_and_changes_nothing(draft, message, build, caplog):
    engine = guarded_engine(build(draft), DraftModelUse(8))
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
    (warning,) = {record.getMessage() for record in caplog.records}
    assert message in warning
    assert warning.startswith("drafter ")
    assert warning.endswith("adding-a-drafter.md); going on without drafts")
    assert caplog.records[0].exc_info is None
