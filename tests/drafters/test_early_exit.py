from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.core.options import format_spec
from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.drafters.draft_model import DraftModel
from forerun.drafters.draft_model import Options as DraftModelOptions
from forerun.drafters.early_exit import EarlyExit, Options, build, tune
from forerun.drafting.base import Target
from forerun.drafting.spec import DrafterSpec
from forerun.engine.engine import Engine
from forerun.model.model import LayerPlan, Model
from tests.drafters.helpers import GREEDY, NO_OUTCOME
from tests.engine.harness import LOOPING, complete, engine_for, plain
from tests.tiny import tiny_model

NUM_LAYERS = 4
MODEL = tiny_model(3, sharpness=3.0, num_layers=NUM_LAYERS)
FIRST_LAYERS = {n: tiny_model(3, sharpness=3.0, num_layers=n) for n in (1, 2)}
"""Models of their own that are the first layers of `MODEL`: weights are made in the order of the layers."""
WARM = SamplingParams(temperature=0.9, top_p=0.95, seed=3)
ANSWER = SamplingParams(temperature=0, max_tokens=30)


def engine_of(model: Model = MODEL, *, max_len: int = 256, spec: str = "early_exit", **options):
    """An engine that drafts in its own cache."""
    cache = model.new_cache(4, max_len)
    target = Target(model, None, max_num_seqs=4, max_len=max_len, cache=cache)
    drafter = DrafterSpec.of(spec, **options).build(target)
    return engine_for(model, drafter, cache=cache, max_len=max_len)


def drafter_after(seqs: Sequence[Seq], **options: object) -> EarlyExit:
    """A drafter over a cache that holds all but the last token of each sequence."""
    cache = MODEL.new_cache(len(seqs), 64)
    for slot, seq in enumerate(seqs):
        seq.slot = slot
        MODEL.forward(Batch((Segment(slot, 0, tuple(seq.tokens[:-1])),)), cache)
        cache.keep(slot, range(len(seq.tokens) - 1))
    target = Target(MODEL, None, max_num_seqs=len(seqs), max_len=64, cache=cache)
    return build(Options(**options), target)  # type: ignore[arg-type]


def seqs_of(params: SamplingParams) -> list[Seq]:
    return [Seq(i, list(tokens), params, seed=40 + i) for i, tokens in enumerate(LOOPING)]


@pytest.mark.parametrize("params", [GREEDY, WARM, replace(WARM, presence_penalty=1.0)])
@pytest.mark.parametrize("branch", [(1, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_exit_drafts_what_its_layers_as_a_model_of_their_own_draft(depth, branch, params):
    seqs = seqs_of(params)
    drafts = drafter_after(seqs, exit=depth, branch=branch).propose(seqs, [20] * len(seqs))
    target = Target(MODEL, None, max_num_seqs=len(seqs), max_len=64)
    options = DraftModelOptions(model="first layers", branch=branch)
    other = DraftModel(FIRST_LAYERS[depth], options, target)
    for seq in seqs:
        other.begin(seq, NO_OUTCOME)
    assert drafts == other.propose(seqs, [20] * len(seqs))
    assert all(len(draft) >= 3 for draft in drafts)


def test_a_skip_set_reads_the_targets_keys_and_values():
    seqs = seqs_of(GREEDY)
    drafter = drafter_after(seqs, skip_attn=(1,), skip_mlp=(0, 2), num_draft=3)
    assert drafter.plan == LayerPlan((0, 3, 4, 6, 7))
    for seq, draft in zip(seqs, drafter.propose(seqs, [8] * len(seqs)), strict=True):
        # One row a pass over a cache that the whole model filled: no batch, no tree, no drafter.
        cache = MODEL.new_cache(1, 64)
        base = len(seq.tokens) - 1
        MODEL.forward(Batch((Segment(0, 0, tuple(seq.tokens[:-1])),)), cache)
        cache.keep(0, range(base))
        rows = [seq.tokens[-1]]
        for i in range(3):
            row = Segment(0, base, tuple(rows), first=i)
            last = MODEL.forward(Batch((row,)), cache, plan=drafter.plan).last
            rows.append(int(MODEL.head(last)[0].argmax()))
        assert draft.tokens == tuple(rows[1:])


@pytest.mark.parametrize("branch", [None, (2, 2, 1)])
def test_the_whole_model_is_always_right(branch):
    engine = engine_of(exit=NUM_LAYERS, branch=branch, num_draft=4)
    runs = complete(engine, LOOPING, ANSWER)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, ANSWER)
    assert engine.stats.acceptance_by_depth[0] == 1
    assert engine.stats.accepted == engine.stats.emitted - engine.stats.passes
    assert engine.stats.tau > 3


def test_it_drafts_to_the_very_end_of_the_context():
    engine = engine_of(max_len=20, exit=2, num_draft=6)
    runs = complete(engine, LOOPING, GREEDY)
    expected = [complete(engine_for(MODEL, max_len=20), [p], GREEDY)[0] for p in LOOPING]
    assert [run.seq.generated for run in runs] == [run.seq.generated for run in expected]
    assert all(len(run.seq.tokens) == 20 for run in runs)


def test_nothing_is_read_twice_and_nothing_held():
    rows: list[tuple[int, bool]] = []
    engine = engine_of(exit=1, num_draft=3)
    model, drafter = engine.model, engine.proposer.drafter
    drafter.model = _Noting(model, rows)
    complete(engine, LOOPING[:1], ANSWER)
    assert {num_rows for num_rows, _ in rows} == {1}
    assert all(has_plan for _, has_plan in rows)
    assert drafter.memory(8, 64).total == 0


class _Noting:
    """Passes on, and notes each pass."""

    def __init__(self, model: Model, rows: list[tuple[int, bool]]) -> None:
        self.config, self.head, self._model, self._rows = model.config, model.head, model, rows

    def forward(self, batch, cache, taps=(), plan=None):
        self._rows.append((batch.num_rows, plan is not None))
        return self._model.forward(batch, cache, taps, plan)


def test_the_default_is_half_of_the_layers_or_all_but_the_skipped():
    def plan(**options) -> LayerPlan:
        return drafter_after(seqs_of(GREEDY), **options).plan

    assert plan() == LayerPlan.of(NUM_LAYERS, exit=2)
    assert plan(skip_attn=(1,)) == LayerPlan.of(NUM_LAYERS, skip_attn=[1])
    assert plan(exit=3, skip_mlp=(0,)) == LayerPlan.of(NUM_LAYERS, exit=3, skip_mlp=[0])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"exit": 0}, "exit must be from 1 to the model's 4 layers, got 0"),
        ({"exit": 5}, "got 5"),
        ({"skip_attn": (4,)}, "skip_attn must be layers 0 to 3, got 4"),
        ({"skip_mlp": (-1,)}, "skip_mlp must be layers 0 to 3, got -1"),
        ({"num_draft": 0}, "num_draft"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        drafter_after(seqs_of(GREEDY), **options)


def test_without_the_targets_cache_it_is_refused():
    with pytest.raises(ConfigError, match="cache"):
        build(Options(), Target(MODEL, None, max_num_seqs=1, max_len=64))


def test_spelling():
    spec = DrafterSpec.of("early_exit:exit=3,skip_attn=1,2,skip_mlp=0,num_draft=3")
    assert dict(spec.options) == {
        "exit": "3",
        "skip_attn": "1,2",
        "skip_mlp": "0",
        "num_draft": "3",
    }


class Planted:
    """A score with one best setting, which a draft of the plan's sublayers costs and gains by."""

    useless = LayerPlan((1, 3, 4)).sublayers

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, options: Options) -> float:
        self.asked.append(format_spec("early_exit", options))
        depth = options.exit or NUM_LAYERS
        run = LayerPlan.of(depth, skip_attn=options.skip_attn, skip_mlp=options.skip_mlp).sublayers
        missed = set(range(2 * NUM_LAYERS)) - set(run) - set(self.useless)
        harm = abs(options.num_draft - 3) + abs(options.min_confidence - 0.4)
        return -10 * len(missed) - len(run) - harm


def test_tuning_finds_what_is_not_missed():
    score = Planted()
    target = Target(MODEL, None, max_num_seqs=1, max_len=64)
    best = tune(target, Options(), score)
    assert best == Options(skip_attn=(2,), skip_mlp=(0, 1), num_draft=3, min_confidence=0.4)
    again = Planted()
    assert tune(target, Options(), again) == best
    assert again.asked == score.asked


def test_tuning_keeps_what_was_given():
    target = Target(MODEL, None, max_num_seqs=1, max_len=64)
    given = Options(exit=2, num_draft=5, min_confidence=0.1)
    assert tune(target, given, Planted()) == given
    tree = Options(exit=2, branch=(2, 1))
    assert tune(target, tree, Planted()) == replace(tree, min_confidence=0.4)


def test_the_engine_uses_the_cache_it_is_given():
    engine = engine_of()
    assert isinstance(engine, Engine)
    assert engine.proposer.drafter.cache is engine.cache is engine.scheduler.cache
