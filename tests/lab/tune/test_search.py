"""Autotune: counts are those of the engine, costs are medians, nothing is scored twice, and nothing pays is said."""

from __future__ import annotations

import dataclasses

import pytest

from forerun.drafting.base import Target
from forerun.drafting.spec import DrafterSpec
from forerun.engine.controller import DraftResult
from forerun.lab.tune import search
from forerun.lab.tune.climb import GAIN
from forerun.lab.tune.figures import PassTime, PassTimes
from forerun.lab.tune.search import (
    Autotune,
    DraftedStep,
    best_of,
    candidates,
    figures_of,
    shapes,
)
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
TARGET = Target(MODEL, None, 1, 256, cache=MODEL.new_cache(1, 256))


def prices(row: float) -> PassTimes:
    """A plain pass takes 1 ms, each further row `row` of it."""
    return PassTimes(tuple(PassTime(8, 1, k, 1 + row * (k - 1)) for k in (1, 2, 8, 16)))


class Search:
    """An autotune over the tiny model that counts what it runs."""

    def __init__(self, *, row: float = 0.1):
        self.built: list[str] = []
        self.seen: list[tuple[int, int]] = []
        self.autotune = Autotune(
            self.new_engine,
            TARGET,
            LOOPING,
            GREEDY.max_tokens,
            prices(row),
            lambda what, done, total: self.seen.append((done, total)),
        )

    def new_engine(self, drafter: str):
        self.built.append(drafter)
        engine = engine_for(MODEL, DrafterSpec.of(drafter).build(TARGET), max_num_seqs=1)
        engine.timers.clock = lambda: 0.0  # for a tiny model a proposal is as dear as a pass
        return engine

    def run(self, *drafters: str):
        return self.autotune.run([DrafterSpec.of(drafter) for drafter in drafters])


@pytest.mark.parametrize("drafter", ["suffix:num_draft=5", "lookahead:window=2", "prompt_lookup"])
def test_counts_are_those_of_drafting_in_full(drafter):
    found = Search().autotune.figures(drafter)
    engine = engine_for(MODEL, DrafterSpec.of(drafter).build(TARGET), max_num_seqs=1)
    for prompt in LOOPING:
        complete(engine, [prompt], dataclasses.replace(GREEDY, seed=0))
    stats = engine.stats
    assert stats.accepted > 0
    assert (found.passes, found.emitted, found.drafted, found.accepted) == (
        stats.passes, stats.emitted, stats.drafted, stats.accepted,
    )  # fmt: skip
    assert found.tau == stats.tau
    assert sum(found.rows.values()) == found.passes
    assert sum(k * n for k, n in found.rows.items()) == found.passes + found.drafted


def test_plain_decoding_is_worth_itself():
    found = Search().autotune.figures("none")
    assert found.tau == 1
    assert found.speedup(prices(0.1)) == 1
    assert found.nodes == ()


def steps(*drafts: tuple[int, float, float], first: int = 0) -> list[DraftedStep]:
    """(nodes, draft seconds, pace) each; a pass takes what `prices(0.5)` says, times the pace."""
    cost = prices(0.5).cost
    return [
        DraftedStep(
            i < first,
            DraftResult(0, n, tuple(range(n // 2))),
            1 + n,
            draft_s * pace,
            cost(1 + n) * pace,
        )
        for i, (n, draft_s, pace) in enumerate(drafts)
    ]


def test_draft_costs_are_medians_whatever_the_pace():
    noisy = [(2, 0.2, 1.0), (2, 0.2, 3.0), (2, 0.2, 0.5), (2, 9.0, 1.0)] * 4
    found = figures_of("x", steps(*noisy), prices(0.5))
    assert found.draft_cost == {2: 0.2}
    assert found.draft_total == pytest.approx(16 * 0.2)
    assert found.speedup(prices(0.5)) == pytest.approx(32 / (16 * 2 + 3.2))


def test_a_first_proposal_is_counted_but_not_usual():
    found = figures_of("x", steps((2, 5.0, 1.0), *[(2, 0.2, 1.0)] * 10, first=1), prices(0.5))
    assert found.draft_cost == {2: 0.2}
    assert found.draft_total == pytest.approx(5.0 + 10 * 0.2)


def test_a_size_seen_once_costs_what_its_neighbour_does():
    found = figures_of("x", steps((4, 7.0, 1.0), *[(3, 0.2, 1.0)] * 8), prices(0.5))
    assert found.draft_cost == {3: 0.2}
    assert found.draft_total == pytest.approx(9 * 0.2)


def test_nodes_tell_how_often_they_were_there_and_right():
    found = figures_of("x", steps((2, 0, 1), (2, 0, 1), (4, 0, 1), (0, 0, 1)), prices(0.5))
    assert found.nodes == ((0.75, 1.0), (0.75, 0.3333), (0.25, 0.0), (0.25, 0.0))


def test_nothing_at_all_is_no_error():
    found = figures_of("x", [], prices(0.5))
    assert (found.tau, found.speedup(prices(0.5)), found.draft_cost) == (1.0, 1.0, {})


def test_a_search_asks_for_each_setting_once_and_ends_with_the_best():
    search = Search(row=0.3)
    (best,) = search.run("suffix")
    assert len(search.built) == len(set(search.built)) > 3
    scores = {k: v.speedup(search.autotune.times) for k, v in search.autotune.tried.items()}
    assert scores[best.drafter] * GAIN >= max(scores.values()) > scores["suffix"]
    assert all(done <= total for done, total in search.seen)


def test_options_that_were_given_stay():
    search = Search()
    (best,) = search.run("suffix:num_draft=2,factor=2")
    assert all("num_draft=2" in drafter and "factor=2.0" in drafter for drafter in search.built)
    assert "num_draft=2" in best.drafter


def test_a_chain_is_scored_as_it_is():
    search = Search()
    (best,) = search.run("prompt_lookup++suffix:num_draft=3")
    assert search.built == [best.drafter] == ["prompt_lookup++suffix:num_draft=3"]


def test_nothing_is_chosen_where_nothing_pays():
    cheap, dear = Search(row=0.05), Search(row=2.0)
    assert best_of(cheap.run("suffix"), cheap.autotune.times) != "none"
    assert best_of(dear.run("suffix"), dear.autotune.times) == "none"
    assert best_of([], prices(0.1)) == "none"


def test_passes_of_each_context_and_batch_are_wanted(monkeypatch):
    monkeypatch.setattr(search, "CONTEXTS", (8, 32))
    assert {*shapes(256)} == {(c, 1, k) for c in (8, 32) for k in search.WIDTHS} | {
        (c, 4, k) for c in (8, 32) for k in search.WIDTHS[2:]
    }


def test_a_short_context_is_timed_once():
    assert {context for context, *_ in shapes(64)} == {32}


def test_candidates_need_nothing():
    assert {"suffix", "prompt_lookup", "lookahead"} <= {*candidates()}
    assert not {"none", "draft_model"} & {*candidates()}
    for name in candidates():
        assert dataclasses.is_dataclass(type(DrafterSpec.of(name).build(TARGET).options))
