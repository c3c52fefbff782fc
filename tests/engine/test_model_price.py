"""Models beside tables in a scripted world: they are asked where that pays, once the text was read, and tried anew."""

from __future__ import annotations

import pytest

from forerun.core.types import Draft, Seq
from forerun.drafters.base.contract import DraftModelUse
from forerun.engine.model_price import EXPLORATION, RESERVE, DraftValues, ModelPrice, Reserve
from tests.engine.harness import GREEDY, LOOPING, Clock, Scripted, complete, plain, timed_engine
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}
CHUNK = 8
"""Tokens that models read in a step."""


class Partnered(Scripted):
    """Tables that are right for one node, at no cost, and a model that makes it right for `right` of four."""

    def __init__(self, clock, right, step_s, read_s=0.0, num_unread=0, tables=1):
        super().__init__(ANSWERS, lambda step: 0)
        self.clock, self.right, self.step_s, self.read_s = clock, right, step_s, read_s
        self.asking, self.num_first, self.tables = DraftModelUse(), num_unread, tables
        self.unread, self.asked = {}, []

    def num_unread(self, seq):
        """As much as is left of what it begins with."""
        return self.unread.setdefault(seq.id, self.num_first)

    def propose(self, seqs, budgets):
        """Read, or ask the model."""
        drafts, self.asking.num_steps, self.asking.num_read = [], [], 0
        for seq, wanted, budget in zip(seqs, self.asking.wanted, budgets, strict=True):
            is_ready = wanted and self.num_unread(seq) == 0
            if wanted and not is_ready:
                read = min(CHUNK, self.unread[seq.id])
                self.unread[seq.id] -= read
                self.asking.num_read += read
                self.clock.now += read * self.read_s
            right, steps = (self.right, 2) if is_ready else (self.tables, 0)
            self.clock.now += steps * self.step_s
            self.asked.append(is_ready)
            self.asking.num_steps.append(steps)
            coming = ANSWERS[tuple(seq.tokens[: seq.num_prompt])][len(seq.generated) :][:4]
            guesses = [t if i < right else (t + 1) % self.vocab_size for i, t in enumerate(coming)]
            draft = Draft.chain(guesses[: min(budget, 4)])
            stated = [0.9 if i < right else 0.1 for i in range(len(draft))]
            drafts.append(Draft(draft.tokens, draft.parents, tuple(stated)))
        return drafts


def run(times=10, prompts=LOOPING[:1], **kind):
    """Answer prompts many times; the drafter and the tokens a plain pass."""
    clock = Clock()
    drafter = Partnered(clock, **kind)
    engine = timed_engine(MODEL, drafter, clock, row_s=0.02, draft_s=0.0, controller=True)
    tokens = 0
    for _ in range(times):
        runs = complete(engine, prompts, GREEDY)
        assert [each.seq.generated for each in runs] == [ANSWERS[tuple(p)] for p in prompts]
        tokens += sum(len(each.seq.generated) for each in runs)
    return drafter, tokens / clock.now


def late(drafter):
    """How often the model was asked in the second half."""
    half = drafter.asked[len(drafter.asked) // 2 :]
    return sum(half) / len(half)


def test_a_model_that_pays_is_asked():
    drafter, rate = run(right=4, step_s=0.2)
    assert late(drafter) > 0.8
    assert rate > 1.4 * run(right=1, step_s=0.2)[1]


@pytest.mark.parametrize("step_s", [0.05, 0.5, 2.0])
def test_a_model_that_adds_nothing_is_left_out_and_the_tables_stay(step_s):
    drafter, rate = run(right=1, step_s=step_s)
    assert late(drafter) < 0.15
    alone = run(right=1, step_s=0.0)[1]
    assert rate > 0.9 * alone
    assert rate > 1.3, "the tables' drafts go on"


def test_a_model_that_costs_more_than_it_brings_is_left_out():
    drafter, rate = run(right=4, step_s=1.5)
    assert late(drafter) < 0.15
    assert rate > 1.3


def test_a_long_text_is_not_read_for_a_short_answer():
    drafter, rate = run(right=4, step_s=0.2, read_s=0.05, num_unread=4000)
    assert not any(drafter.asked)
    assert rate > run(right=1, step_s=0.2)[1]


def test_a_text_is_read_in_parts_before_the_model_is_asked():
    drafter, rate = run(right=4, step_s=0.2, read_s=0.02, num_unread=24)
    assert late(drafter) > 0.6
    assert rate > 1.2 * run(right=1, step_s=0.2)[1]


def test_in_a_batch_tokens_stay():
    drafter, _ = run(times=4, prompts=LOOPING, right=3, step_s=0.1, num_unread=8)
    assert any(drafter.asked)


def test_what_loading_took_is_worked_off_before_anything_is_tried():
    """A trial that brought a model back into memory is paid like the steps of one."""
    reserve, seq = Reserve(), Seq(0, [1] * 600, GREEDY, 0)
    price = ModelPrice(0.1, reserve)

    def is_tried():
        reserve.is_models_turn = True
        return price.decide(seq, DraftValues(), 0.0, 1.0, 1.0, num_unread=100)

    def saves():
        """The time after which something is tried again."""
        time = 0
        while not is_tried():
            reserve.time = min(reserve.time + 100 * EXPLORATION, RESERVE)
            time += 100
        return time

    assert is_tried()
    while is_tried():
        pass
    usually = saves()
    while is_tried():
        pass
    reserve.time -= 40.0
    assert saves() - usually == pytest.approx(40 / EXPLORATION, rel=0.1)
