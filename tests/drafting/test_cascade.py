"""A network, a model and tables in one tree: tokens stay, prompts are read in parts and only where it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.drafters import draft_model
from forerun.drafting import cascade
from forerun.drafting.base import Target
from forerun.drafting.cascade import Cascade, united
from forerun.drafting.spec import DrafterSpec
from forerun.drafting.union import Union
from forerun.engine.controller import Controller
from forerun.engine.model_price import DraftValues, ModelPrice
from tests.engine.harness import GREEDY, LOOPING, complete, drain, engine_for, plain
from tests.tiny import tiny_model

pytest.importorskip("forerun._native")

MODEL = tiny_model(3, sharpness=3.0)
SIBLING = tiny_model(3, sharpness=3.0, noise=0.15)
TARGET = Target(MODEL, None, max_num_seqs=4, max_len=256)
SAMPLED = replace(GREEDY, temperature=0.7, top_p=0.95, seed=11)
TABLES = "recycling:table=none,min_chance=0.001"


def sibling(**options) -> draft_model.NetworkDrafter:
    given = draft_model.Options(model="tiny", **options)
    return draft_model.drafter_of(SIBLING, given, TARGET)


def built(*others: str, **options) -> Cascade:
    parts = [DrafterSpec.of(each).build(TARGET) for each in others]
    drafter = united([sibling(**options), *parts])
    assert isinstance(drafter, Cascade)
    return drafter


def both(**options) -> Cascade:
    return built("mlp_speculator:model=untrained,min_chance=0", TABLES, **options)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_seqs", [1, 4])
def test_tokens_stay(params: SamplingParams, num_seqs: int) -> None:
    wanted = [*plain(MODEL, LOOPING, params)]
    drafter = both()
    engine = engine_for(MODEL, drafter, max_num_seqs=num_seqs)
    taken = []
    propose = drafter.propose

    def counted(seqs, budgets):
        drafts = propose(seqs, budgets)
        taken.extend(drafter.asking.num_steps)
        return drafts

    drafter.propose = counted
    runs = complete(engine, LOOPING, params)
    assert [run.seq.generated for run in runs] == wanted
    stats = engine.stats
    assert stats.drafted > stats.accepted > 0 < stats.rejected
    assert 0 < sum(map(bool, taken)) <= len(taken)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_stay_after_a_preemption(params: SamplingParams) -> None:
    wanted = [*plain(MODEL, LOOPING, params)]
    engine = engine_for(MODEL, both())
    runs = [engine.add(prompt, params) for prompt in LOOPING]
    for step in range(12):
        engine.step()
        if step in (4, 7):
            engine.preempt(runs[step % len(runs)].seq.id)
    drain(engine)
    assert [run.seq.generated for run in runs] == wanted
    assert engine.stats.drafted > engine.stats.accepted > 0 < engine.stats.rejected


def test_a_tree_of_all_is_right_at_least_as_often_as_one_without_the_model() -> None:
    taus = []
    for drafter in (both(), DrafterSpec.of(TABLES).build(TARGET)):
        engine = engine_for(MODEL, drafter)
        complete(engine, LOOPING, GREEDY)
        taus.append(engine.stats.tau)
    assert taus[0] > 1.1 * taus[1]


def rows_of(drafter: Cascade) -> list[int]:
    """The rows of each pass of the model from now on."""
    (model,), rows = drafter.models, []
    states = model._states

    def counted(batch):
        rows.append(batch.num_rows)
        return states(batch)

    model._states = counted
    return rows


def test_nothing_is_read_where_the_model_is_not_asked_and_else_in_parts() -> None:
    prompt = [1 + 7 * i % 20 for i in range(200)]
    (wanted,) = plain(MODEL, [prompt], GREEDY)
    drafter = both(num_steps=2)
    rows, engine = rows_of(drafter), engine_for(MODEL, drafter)
    asking = drafter.asking

    class AfterTen(Controller):
        def budgets(self, steps, num_others=0, *, is_reading=False):
            for step in steps:
                step.budget, step.wants_models = 7, len(step.seq.generated) > 10

    engine.proposer.controller = AfterTen()
    run = engine.add(prompt, GREEDY)
    while len(run.seq.generated) <= 10:
        engine.step()
    assert rows == []
    num_read = []
    while run.seq.id in engine.sequences:
        engine.step()
        num_read.append(asking.num_read)
    assert run.seq.generated == wanted
    assert max(rows) == cascade.READ_ROWS
    assert num_read[:3] == [cascade.READ_ROWS] * 3
    assert sum(rows) > 200


def test_others_are_united_with_the_one_tree() -> None:
    suffix = DrafterSpec.of("suffix").build(TARGET)
    tables = DrafterSpec.of(TABLES).build(TARGET)
    drafter = united([suffix, sibling(), tables])
    assert isinstance(drafter, Union)
    assert drafter.first is suffix
    assert isinstance(drafter.second, Cascade)


def test_auto_takes_a_partner() -> None:
    spec = DrafterSpec.of("auto:partner=self")
    assert spec.is_auto
    assert spec.text().startswith("draft_model:model=self,")
    assert spec.text().endswith("++recycling")
    assert DrafterSpec.of("auto", model="self").text() == spec.text()


def test_a_step_costs_what_it_reads_until_it_is_measured() -> None:
    """A model of a twentieth of the target is tried over a prompt that one of a half would read for too long."""
    drafter = built(TABLES)
    assert drafter.asking is not None
    assert drafter.asking.step_cost == pytest.approx(1.0, abs=0.05), "as large as the target"
    assert 0 < built(TABLES, draft_vocab="8").asking.step_cost < drafter.asking.step_cost

    def is_tried(step_cost: float) -> bool:
        seq = Seq(0, [1] * 600, GREEDY, 0)
        return ModelPrice(step_cost).decide(seq, DraftValues(), 0.0, 1.0, 1.0, num_unread=600)

    assert is_tried(0.04)
    assert not is_tried(0.5)
