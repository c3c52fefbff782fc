"""Autotune: a climb reaches the top and keeps what was given, counts are the engine's, and nothing is run twice."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun._native import CostCurve
from forerun.core import options as spelling
from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.find import method_of
from forerun.drafters.base.spec import DrafterSpec
from forerun.lab.tune.search import (
    GAIN,
    Autotune,
    DraftedStep,
    DrafterFigures,
    candidates,
    climb,
    winner,
)
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
TARGET = Target(MODEL, None, 1, 256, cache=MODEL.new_cache(1, 256))
GRIDS = {"width": (1, 2, 4, 8, 16), "share": (0.1, 0.2, 0.4, 0.8)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    width: int = 4
    share: float = 0.2

    def __post_init__(self) -> None:
        if self.width == 16 and self.share > 0.5:
            raise ConfigError("these do not go together")


class Hill:
    """A score that falls by a tenth with every step away from its top."""

    def __init__(self, **top):
        self.top = top
        self.asked = []

    def __call__(self, options):
        self.asked.append(options)
        distance = sum(
            abs(GRIDS[name].index(getattr(options, name)) - GRIDS[name].index(value))
            for name, value in self.top.items()
        )
        return 2 * 0.9**distance


@given(st.sampled_from(GRIDS["width"][:-1]), st.sampled_from(GRIDS["share"]))
def test_a_climb_reaches_the_top(width, share):
    top = {"width": width, "share": share}
    assert climb(Options(), GRIDS, Hill(**top)) == Options(**top)


def test_what_was_given_stays():
    hill = Hill(width=1, share=0.8)
    assert climb(Options(width=8), GRIDS, hill) == Options(width=8, share=0.8)
    assert {options.width for options in hill.asked} == {8}


def test_options_that_do_not_go_together_are_passed_over():
    best = climb(Options(), GRIDS, Hill(width=16, share=0.8))
    assert best in (Options(width=16, share=0.4), Options(width=8, share=0.8))


def test_noise_moves_nothing():
    wobble = {4: 1.0, 8: 1.0 + (GAIN - 1) / 2, 2: 1.0 + (GAIN - 1) / 3}
    grid = {"width": (2, 4, 8)}
    assert climb(Options(), grid, lambda options: wobble[options.width]) == Options()


@pytest.mark.parametrize("name", [n for n in registry.names("drafters") if method_of(n).grids])
def test_what_a_drafter_tries_can_be_spelled_and_read_back(name):
    module = registry.load("drafters", name)
    described = spelling.describe(module.Options)
    needed = {doc.name: "untrained" for doc in described if doc.default is None}
    asked = []

    def score(options):
        asked.append(options)
        return 1.0 + len(asked)  # whatever is new is better: the search goes far

    climb(spelling.build(module.Options, needed), method_of(name).grids, score)
    assert len(asked) > 3
    for options in asked:
        _, values = spelling.parse(spelling.format_spec(name, options))
        assert spelling.build(module.Options, values) == options


def prices(row: float) -> CostCurve:
    """A plain pass costs 1, each further row `row` of it."""
    return CostCurve({k: 1 + row * (k - 1) for k in (1, 2, 8, 16)})


class Search:
    """An autotune over the tiny model that counts what it runs."""

    def __init__(self, *, row: float = 0.1):
        self.built: list[str] = []
        self.autotune = Autotune(self.new_engine, LOOPING, GREEDY.max_tokens, prices(row))

    def new_engine(self, drafter: str):
        self.built.append(drafter)
        engine = engine_for(MODEL, DrafterSpec.of(drafter).build(TARGET), max_num_seqs=1)
        engine.timers.clock = lambda: 0.0  # for a tiny model a proposal is as dear as a pass
        return engine

    def best_of(self, drafter: str) -> DrafterFigures:
        return self.autotune.best_of(DrafterSpec.of(drafter))


@pytest.mark.parametrize("drafter", ["suffix:num_draft=5", "lookahead:window=2", "prompt_lookup"])
def test_counts_are_those_of_drafting_in_full(drafter):
    figures = Search().autotune.figures(drafter)
    engine = engine_for(MODEL, DrafterSpec.of(drafter).build(TARGET), max_num_seqs=1)
    for prompt in LOOPING:
        complete(engine, [prompt], dataclasses.replace(GREEDY, seed=0))
    stats = engine.stats
    assert stats.accepted > 0
    assert (figures.passes, figures.emitted, figures.drafted, figures.accepted) == (
        stats.passes, stats.emitted, stats.drafted, stats.accepted,
    )  # fmt: skip
    assert figures.tau == stats.tau
    assert sum(figures.rows.values()) == figures.passes
    assert sum(k * n for k, n in figures.rows.items()) == figures.passes + figures.drafted


def test_plain_decoding_is_worth_itself():
    figures = Search().autotune.figures("none")
    assert figures.tau == figures.speedup == 1


def figures_of(*drafts: tuple[int, float, float], first: int = 0) -> DrafterFigures:
    """(nodes, draft seconds, pace) each, half accepted; a pass takes what `prices(0.5)` says, times the pace."""
    costs = prices(0.5)
    steps = [
        DraftedStep(
            i < first,
            n,
            n // 2,
            1 + n,
            draft_s * pace,
            costs.v(1 + n) * pace,
        )
        for i, (n, draft_s, pace) in enumerate(drafts)
    ]
    return DrafterFigures.of("x", steps, costs)


def test_a_score_is_tokens_over_passes_and_the_medians_of_proposals_whatever_the_pace():
    figures = figures_of(*[(2, 0.2, 1.0), (2, 0.2, 3.0), (2, 0.2, 0.5), (2, 9.0, 1.0)] * 4)
    assert (figures.pass_cost, figures.draft_cost) == pytest.approx((16 * 2, 16 * 0.2))
    assert figures.speedup == pytest.approx(32 / (16 * 2 + 3.2))
    assert (figures.tau, figures.acceptance_rate) == (2.0, 0.5)


def test_a_first_proposal_is_counted_but_not_usual():
    figures = figures_of((2, 5.0, 1.0), *[(2, 0.2, 1.0)] * 10, first=1)
    assert figures.draft_cost == pytest.approx(5.0 + 10 * 0.2)


def test_nothing_at_all_is_no_error():
    figures = figures_of()
    assert (figures.tau, figures.speedup, figures.draft_cost) == (1.0, 1.0, 0)


def test_a_search_asks_for_each_setting_once_and_ends_with_the_best():
    search = Search(row=0.3)
    best = search.best_of("suffix")
    assert len(search.built) == len(set(search.built)) > 3
    scores = {k: v.speedup for k, v in search.autotune.tried.items()}
    assert scores[best.drafter] * GAIN >= max(scores.values()) > scores["suffix"]


def test_a_chain_is_scored_as_it_is():
    search = Search()
    best = search.best_of("prompt_lookup++suffix:num_draft=3")
    assert search.built == [best.drafter] == ["prompt_lookup++suffix:num_draft=3"]


def test_nothing_is_chosen_where_nothing_pays():
    assert winner([Search(row=0.05).best_of("suffix")]) != "none"
    assert winner([Search(row=2.0).best_of("suffix")]) == "none"
    assert winner([]) == "none"


def test_candidates_need_nothing():
    assert {"suffix", "prompt_lookup", "lookahead"} <= {*candidates()}
    assert not {"none", "draft_model"} & {*candidates()}
    for name in candidates():
        assert dataclasses.is_dataclass(type(DrafterSpec.of(name).build(TARGET).options))
