"""The contract every drafter keeps, checked over every file in `drafters/`: a new one is tested by being there.

Each law asserts that drafts were made, accepted and rejected, so that none passes by not drafting.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from forerun.cache.base import KVCache
from forerun.core import registry, tree
from forerun.core.batch import Batch, Segment
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT
from forerun.drafters.base import Drafter, Target
from forerun.engine.engine import Engine
from forerun.engine.stats import SpecStats
from tests.engine.harness import GREEDY, LOOPING, complete, drain, engine_for, plain
from tests.tiny import tiny_model

DRAFTERS = [name for name in registry.names("drafters") if name != "none"]
MODEL = tiny_model(3, sharpness=3.0)
NOISY = tiny_model(3, sharpness=3.0, noise=0.15)
FALSE_ALARM = 1e-6


def drafters(
    name: str, target_model=MODEL, draft_model=NOISY, shapes=None, cache: KVCache | None = None
) -> dict[str, Drafter]:
    """The variants of one drafter that the contract is checked with."""
    module = registry.load("drafters", name)
    cache = cache or target_model.new_cache(1, 2)
    target = Target(target_model, None, max_num_seqs=64, max_len=256, cache=cache)
    if name == "draft_model":
        shapes = shapes or {"chain": (1, 1, 1, 1, 1), "tree": (2, 2, 1)}
        return {
            shape: module.DraftModel(
                draft_model, module.Options(model="tiny", branch=branch), target
            )
            for shape, branch in shapes.items()
        }
    return {"default": module.build(module.Options(), target)}


VARIANTS = [(name, variant) for name in DRAFTERS for variant in drafters(name)]


def build(name: str, variant: str, **models) -> Drafter:
    return drafters(name, **models)[variant]


def engine_with(
    name: str, variant: str, *, model=MODEL, max_num_seqs=4, max_len=256, draft_budget=63, **models
) -> Engine:
    """An engine and its drafter over one cache."""
    cache = model.new_cache(max_num_seqs, max_len)
    drafter = build(name, variant, target_model=model, cache=cache, **models)
    sizes = {"max_num_seqs": max_num_seqs, "max_len": max_len, "draft_budget": draft_budget}
    return engine_for(model, drafter, cache=cache, **sizes)


def assert_busy(counts: SpecStats) -> None:
    """Drafts were made, some tokens of them kept and some not, over more than one round."""
    assert counts.passes > 1
    assert counts.drafted > 0
    assert counts.accepted > 0
    assert counts.rejected > 0


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_greedy_output_equals_plain_decoding(name, variant):
    engine = engine_with(name, variant)
    for prompt in LOOPING:
        (run,) = complete(engine, [prompt], GREEDY)
        assert [run.seq.generated] == plain(MODEL, [prompt], GREEDY)
    assert_busy(engine.stats)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_batch_of_three_equals_three_batches_of_one(name, variant):
    engine = engine_with(name, variant)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, GREEDY)
    assert_busy(engine.stats)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
@pytest.mark.parametrize(
    "extra",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
        {"logit_bias": {3: 2.0, 9: -5.0}, "min_tokens": 9, "stop_token_ids": (16,)},
    ],
)
def test_penalties_bias_and_stops_hold_along_the_draft(name, variant, extra):
    params = SamplingParams(temperature=0, max_tokens=30, **extra)
    engine = engine_with(name, variant)
    runs = complete(engine, LOOPING, params)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, params)
    assert engine.stats.drafted > 0


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_leaving_and_coming_back_changes_nothing(name, variant):
    engine = engine_with(name, variant, max_num_seqs=2)
    runs = [engine.add(prompt, GREEDY) for prompt in LOOPING]
    for step in itertools.count():
        if not engine.has_work:
            break
        engine.step()
        running = engine.scheduler.running
        if step % 7 == 6 and running:
            engine.preempt(running[0].id)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, GREEDY)
    assert_busy(engine.stats)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_seeded_point_mass_run_says_what_plain_sampling_says(name, variant):
    if build(name, variant).draws:
        pytest.skip("its drafts are drawn: rule two keeps the law, not the numbers")
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=11, max_tokens=40)
    engine = engine_with(name, variant)
    runs = complete(engine, LOOPING, params)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, params)
    assert_busy(engine.stats)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
@given(data=st.data())
@settings(max_examples=15)
def test_drafts_are_trees_within_the_budget(name, variant, data):
    budget = data.draw(st.integers(1, 12))
    engine = engine_with(name, variant, draft_budget=budget)
    drafter = engine.drafter
    proposed = []
    propose = drafter.propose
    drafter.propose = lambda seqs, each: proposed.append(propose(seqs, each)) or proposed[-1]  # type: ignore[method-assign, func-returns-value]
    prompt = data.draw(st.lists(st.integers(0, 23), min_size=1, max_size=20))
    complete(engine, [prompt, *LOOPING], SamplingParams(temperature=0, max_tokens=12))
    for draft in itertools.chain.from_iterable(proposed):
        assert len(draft) <= budget
        tree.check(draft.parents)
        assert all(0 <= token < 24 for token in draft.tokens)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_ending_an_unknown_sequence_is_harmless_and_an_ended_one_is_forgotten(name, variant):
    engine = engine_with(name, variant)
    drafter = engine.drafter
    (run,) = complete(engine, LOOPING[:1], GREEDY)
    drafter.end(run.seq)
    assert drafter.propose([], []) == []


def exact_law(model, prompt, length, temperature) -> dict[tuple[int, ...], float]:
    """The law of the next `length` tokens, by enumeration: one pass a prefix, softmax in fp64."""
    law = {(): 1.0}
    for _ in range(length):
        longer = {}
        for prefix, mass in law.items():
            cache = model.new_cache(1, 64)
            batch = Batch((Segment.of(0, 0, [*prompt, *prefix], EMPTY_DRAFT),))
            logits = model.head(model.forward(batch, cache).last[-1:])[0].double() / temperature
            for token, p in enumerate(torch.softmax(logits, 0).tolist()):
                longer[(*prefix, token)] = mass * p
        law = longer
    return law


LAW_MODEL = tiny_model(8, vocab_size=4, sharpness=1.5)
LAW_DRAFT = tiny_model(8, vocab_size=4, sharpness=1.5, noise=0.6)
LAW_SHAPES = {"chain": (1, 1), "tree": (2, 1)}


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_whole_sampled_sequences_follow_the_targets_law(name, variant):
    """Chi-square over all 64 outcomes of three tokens; false-alarm rate 1e-6, fixed seeds."""
    prompt, length, num_samples = [0, 1, 2, 0, 1, 2, 0, 1], 3, 2048
    law = exact_law(LAW_MODEL, prompt, length, 0.8)
    models = {"model": LAW_MODEL, "draft_model": LAW_DRAFT, "shapes": LAW_SHAPES}
    engine = engine_with(name, variant, max_num_seqs=64, max_len=64, **models)
    counts = dict.fromkeys(law, 0)
    runs = [
        engine.add(prompt, SamplingParams(temperature=0.8, seed=seed, max_tokens=length + 1))
        for seed in range(num_samples)
    ]
    drain(engine)
    for run in runs:
        counts[tuple(run.seq.generated[:length])] += 1
    assert_busy(engine.stats)
    assert goodness_of_fit(counts, law, num_samples) > FALSE_ALARM


def goodness_of_fit(counts, law, num_samples) -> float:
    """The chi-square p-value; outcomes expected fewer than 5 times are counted together."""
    expected = np.array([law[outcome] * num_samples for outcome in law])
    observed = np.array([counts[outcome] for outcome in law], dtype=float)
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)
