"""A network, a model and tables in one tree: tokens stay, prompts are read in parts and only where it is asked for."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import LLM
from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.drafters import draft_model
from forerun.drafters.base import cascade
from forerun.drafters.base.cascade import Cascade, united
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.base.union import Union
from forerun.engine.controller import Controller
from forerun.engine.engine import Engine
from forerun.engine.model_price import DraftValues, ModelPrice, Reserve
from forerun.engine.sequence import SequenceState
from forerun.model.model import Model
from forerun.system import background
from forerun.system.device import resident_nbytes
from tests.engine.harness import GREEDY, LOOPING, complete, drain, engine_for, plain
from tests.tiny import tiny_model

_native = pytest.importorskip("forerun._native")

MODEL = tiny_model(3, sharpness=3.0)
SIBLING = tiny_model(3, sharpness=3.0, noise=0.15)
TARGET = Target(MODEL, None, max_num_seqs=4, max_len=256)
SAMPLED = replace(GREEDY, temperature=0.7, top_p=0.95, seed=11)
LONG = replace(GREEDY, max_tokens=300)
TABLES = "recycling:table=none,min_chance=0.001"


def sibling(**options) -> draft_model.DraftModel:
    given = draft_model.Options(model="tiny", **options)
    return draft_model.drafter_of(SIBLING, given, TARGET)


def built_of(*parts: str | Drafter) -> Cascade:
    drafter = united(
        [DrafterSpec.of(part).build(TARGET) if isinstance(part, str) else part for part in parts]
    )
    assert isinstance(drafter, Cascade)
    return drafter


def built(*others: str, **options) -> Cascade:
    return built_of(sibling(**options), *others)


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
        return ModelPrice(step_cost, Reserve()).decide(
            seq, DraftValues(), 0.0, 1.0, 1.0, num_unread=600
        )

    assert is_tried(0.04)
    assert not is_tried(0.5)


def test_a_partner_that_is_wrong_loses_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was made for another model: what the tables know counts again after some drafts."""
    other, taus, shares = tiny_model(8, sharpness=6.0), [], []
    for learns in (True, False):
        if not learns:
            monkeypatch.setattr(_native.Trace, "teach", lambda self, tokens, partners: None)
        options = draft_model.Options(model="tiny")
        drafter = built_of(draft_model.drafter_of(other, options, TARGET), TABLES)
        engine = engine_for(MODEL, drafter)
        complete(engine, LOOPING * 4, GREEDY)
        taus.append(engine.stats.tau)
        shares.append(drafter.models[0].share)
    assert shares[0] < 0.5 * shares[1]
    assert taus[0] > 1.2 * taus[1]


class Told(Controller):
    """Models take part as it is told."""

    wants = True

    def budgets(self, steps, num_others=0, *, is_reading=False):
        for step in steps:
            step.budget, step.wants_models = 7, self.wants


@pytest.fixture
def resting_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models rest after 120 drafts."""
    monkeypatch.setattr(cascade, "REST_DRAFTS", 120)


def resting(load: Callable[[], Model]) -> tuple[Cascade, Engine, Told, list[SequenceState]]:
    """A model beside tables that has left memory, and an engine that answers with them."""
    options, model = draft_model.Options(model="tiny"), load()
    gone = weakref.ref(model)
    drafter = built_of(draft_model.drafter_of(model, options, TARGET, load=load), TABLES)
    del model
    engine, told = engine_for(MODEL, drafter), Told()
    engine.proposer.controller = told
    runs = [engine.add(prompt, LONG) for prompt in LOOPING]
    for _ in range(4):
        engine.step()
    assert any(drafter.asking.num_steps)
    told.wants, num_steps = False, 0
    while drafter.models[0].resident.is_here:
        engine.step()
        num_steps += 1
    assert num_steps == pytest.approx(120, abs=2)
    gc.collect()
    assert gone() is None, "nothing holds its weights"
    return drafter, engine, told, runs


@pytest.mark.usefixtures("resting_soon")
def test_a_model_that_nobody_wants_leaves_memory_and_comes_back() -> None:
    """Drafts go on without it meanwhile, and no token changes."""
    loading = threading.Event()
    loading.set()

    def load() -> Model:
        loading.wait(30)
        return tiny_model(3, sharpness=3.0, noise=0.15)

    drafter, engine, told, runs = resting(load)
    loading.clear()
    accepted, told.wants = engine.stats.accepted, True
    for _ in range(5):
        engine.step()
        assert not any(drafter.asking.num_steps)
    assert engine.stats.accepted > accepted
    loading.set()
    assert background.join("forerun-draft", 30)
    num_steps = 0
    while engine.sequences:
        engine.step()
        num_steps += sum(drafter.asking.num_steps)
    assert num_steps
    assert [run.seq.generated for run in runs] == [*plain(MODEL, LOOPING, LONG)]


@pytest.mark.usefixtures("resting_soon")
def test_one_that_cannot_be_loaded_again_is_told_and_done_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = [tiny_model(3, sharpness=3.0, noise=0.15)]

    def load() -> Model:
        if not models:
            raise LoadError("the file is gone")
        return models.pop()

    drafter, engine, told, _ = resting(load)
    told.wants = True
    drain(engine)
    assert background.join("forerun-draft", 30)
    assert not drafter.models[0].resident.is_here
    assert caplog.text.count("the file is gone; going on without it") == 1


def test_a_real_model_gives_its_memory_back(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default model beside itself in int4: what it takes is free while it rests, and the plan keeps room for it."""
    llm = LLM(default_model, drafter="auto:partner=self", max_model_len=256, max_num_seqs=1)
    told = llm.engine.proposer.controller = Told()
    cascade_ = llm.engine.proposer.drafter
    assert isinstance(cascade_, Cascade)
    (model,), params = cascade_.models, SamplingParams(temperature=0, max_tokens=24)
    first = llm.generate("The three primary colours are", params)[0].outputs[0]
    nbytes, before = model.memory(1, 256).weights, resident_nbytes()
    told.wants = False
    monkeypatch.setattr(cascade, "REST_DRAFTS", 0)
    texts = [llm.generate("The three primary colours are", params)[0].outputs[0].text]
    gc.collect()
    assert not model.resident.is_here
    assert before - resident_nbytes() > 0.7 * nbytes > 30e6
    told.wants = True
    monkeypatch.setattr(cascade, "REST_DRAFTS", 2000)
    for _ in range(2):  # the first brings it back
        texts.append(llm.generate("The three primary colours are", params)[0].outputs[0].text)
        assert background.join("forerun-draft", 120)
    assert model.resident.is_here
    assert {*texts} == {first.text}


def test_no_row_of_a_model_is_computed_before_the_first_token() -> None:
    """However much it is wanted: its part of the prompt is read after that, so no first token waits for it."""
    prompt = [1 + 7 * i % 20 for i in range(200)]
    drafter = both()
    rows, engine = rows_of(drafter), engine_for(MODEL, drafter)
    run = engine.add(prompt, GREEDY)
    while not run.seq.generated:
        engine.step()
        assert not rows
    drain(engine)
    assert sum(rows) > 200
