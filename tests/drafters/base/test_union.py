"""United drafters: the tree of two trees, how they are spelled, and that tokens stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft
from forerun.drafters import draft_model
from forerun.drafters.base.contract import Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.base.union import Union, unite
from forerun.drafters.suffix import Options, Suffix
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
NOISY = tiny_model(3, sharpness=3.0, noise=0.15)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}
TARGET = Target(MODEL, None, max_num_seqs=4, max_len=256)


def drafts():
    paths = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4)
    return paths.map(lambda each: Draft(*tree.from_paths(each)))


def paths_of(draft: Draft) -> set[tuple[int, ...]]:
    """Every path from the root, in tokens."""
    paths = (tree.path_to(i, draft.parents) for i in range(len(draft)))
    return {tuple(draft.tokens[i] for i in path) for path in paths}


@given(drafts(), drafts())
def test_a_union_says_what_either_says_and_nothing_twice(first, second):
    both = unite(first, second)
    assert paths_of(both) == paths_of(first) | paths_of(second)
    assert len(paths_of(both)) == len(both)
    assert both.trim(len(first)) == first if len(first) else both == second


def with_confidence(draft: Draft, seed: int) -> Draft:
    values = np.random.default_rng(seed).random(len(draft)).tolist()
    return Draft(draft.tokens, draft.parents, tuple(values))


@given(drafts(), drafts())
def test_by_stated_probabilities_the_node_that_is_likeliest_to_be_reached_comes_first(
    first, second
):
    first, second = with_confidence(first, 1), with_confidence(second, 2)
    both = unite(first, second)
    assert paths_of(both) == paths_of(first) | paths_of(second)
    reach = []
    for parent, p in zip(both.parents, both.confidence, strict=True):
        reach.append(p * (reach[parent] if parent >= 0 else 1.0))
    assert reach == sorted(reach, reverse=True)
    assert set(both.confidence) <= {*first.confidence, *second.confidence}
    again = unite(both, first)
    assert (again.tokens, again.confidence) == (both.tokens, both.confidence)


def union(model=NOISY, **options) -> Union:
    second = draft_model.drafter_of(model, draft_model.Options(model="tiny", **options), TARGET)
    return Union(Suffix(Options()), second)


def test_together_they_accept_at_least_as_much_as_either():
    tau = {}
    for name, drafter in (
        ("suffix", Suffix(Options())),
        ("draft", union().second),
        ("both", union()),
    ):
        engine = engine_for(MODEL, drafter)
        complete(engine, LOOPING, GREEDY)
        tau[name] = engine.stats.tau
    assert tau["both"] >= max(tau["suffix"], tau["draft"])


def test_a_window_reads_its_own_rows_beside_the_nodes_of_another():
    """The n-grams lookahead collects do not depend on what is added to its tree."""
    spec = "lookahead:window=3,ngram=3"
    wrong = Scripted(ANSWERS, lambda step: 0)
    pools = []
    for drafter in (
        DrafterSpec.of(spec).build(TARGET),
        Union(wrong, DrafterSpec.of(spec).build(TARGET)),
    ):
        engine = engine_for(MODEL, drafter)
        run = engine.add(LOOPING[0], SamplingParams(temperature=0, seed=1, max_tokens=40))
        states = getattr(drafter, "second", drafter).states
        while len(run.seq.generated) < 20:
            engine.step()
        pools.append(states[run.seq.id].pool)
    assert pools[0].ngrams == pools[1].ngrams


def test_a_budget_holds_for_both_together():
    engine = engine_for(MODEL, union(), draft_budget=4)
    runs = complete(engine, LOOPING, GREEDY)
    assert all(run.stats.drafted <= 4 * run.stats.passes for run in runs)


def test_spelling():
    spec = DrafterSpec.of("suffix:num_draft=3++lookahead:window=3,ngram=3")
    assert spec.name == "suffix++lookahead"
    built = spec.build(TARGET)
    assert isinstance(built, Union)
    assert isinstance(built.first, Suffix)
    assert DrafterSpec.of("draft_model:model=a++b.gguf").parts == ()
    with pytest.raises(ConfigError, match=r"with suffix\+\+lookahead\+\+prompt_lookup"):
        DrafterSpec.of("suffix+lookahead++prompt_lookup")


def test_the_union_of_nothing_and_nothing_is_nothing():
    assert unite(EMPTY_DRAFT, EMPTY_DRAFT) == EMPTY_DRAFT
