"""The search for options: it climbs to the top, keeps what was given, asks little, and asks the same each time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import options as spelling
from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.drafters import draft_model, lookahead
from forerun.drafting.base import Target
from forerun.drafting.find import method_of
from forerun.lab.tune.climb import GAIN, climb
from tests.tiny import tiny_model

TARGET = Target(tiny_model(), None, 1, 64)
GRIDS = {"width": (1, 2, 4, 8, 16), "share": (0.1, 0.2, 0.4, 0.8)}
TUNABLE = [n for n in registry.names("drafters") if method_of(n).tune or method_of(n).grids]


class Search:
    """What a `tune` is given, over a score of the test's."""

    def __init__(self, score):
        self.score = score

    def climb(self, options, grids, *, grow=False):
        return climb(options, grids, self.score, grow=grow)


def tuned(name, options, score):
    """The best options by the module's own search, or along its grids."""
    return method_of(name).best(TARGET, options, Search(score))


@dataclass(frozen=True, slots=True, kw_only=True)
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


@given(st.sampled_from(GRIDS["width"][:-1]), st.sampled_from(GRIDS["share"]), st.booleans())
def test_it_reaches_the_top_and_the_same_way_each_time(width, share, grow):
    first, second = Hill(width=width, share=share), Hill(width=width, share=share)
    found = climb(Options(), GRIDS, first, grow=grow)
    assert found == Options(width=width, share=share)
    assert climb(Options(), GRIDS, second, grow=grow) == found
    assert first.asked == second.asked


def test_what_was_given_stays():
    hill = Hill(width=1, share=0.8)
    assert climb(Options(width=8), GRIDS, hill) == Options(width=8, share=0.8)
    assert climb(Options(width=8), GRIDS, hill, grow=True) == Options(width=8, share=0.8)
    assert {options.width for options in hill.asked} == {8}


def test_growing_begins_with_the_smallest():
    hill = Hill(width=1, share=0.1)
    climb(Options(), GRIDS, hill, grow=True)
    assert hill.asked[0] == Options(width=1, share=0.1)
    assert len(hill.asked) == 3


def test_options_that_do_not_go_together_are_passed_over():
    hill = Hill(width=16, share=0.8)
    assert climb(Options(), GRIDS, hill) in (
        Options(width=16, share=0.4),
        Options(width=8, share=0.8),
    )


def test_noise_moves_nothing():
    wobble = {4: 1.0, 8: 1.0 + (GAIN - 1) / 2, 2: 1.0 + (GAIN - 1) / 3}
    grid = {"width": (2, 4, 8)}
    assert climb(Options(), grid, lambda options: wobble[options.width]) == Options()


@pytest.mark.parametrize("name", TUNABLE)
def test_what_a_drafter_tries_can_be_spelled_and_read_back(name):
    module = registry.load("drafters", name)
    needed = {
        doc.name: "untrained" for doc in spelling.describe(module.Options) if doc.default is None
    }
    start, asked = spelling.build(module.Options, needed), []

    def score(options):
        asked.append(options)
        return 1.0 + len(asked)  # whatever is new is better: the search goes far

    best = tuned(name, start, score)
    assert best in asked
    for options in asked:
        _, values = spelling.parse(spelling.format_spec(name, options))
        assert spelling.build(module.Options, values) == options


def test_a_window_grows_where_rows_are_free_and_not_where_they_cost():
    asked = []

    def score(options, row_cost):
        asked.append(options)
        rows = (options.window + options.guesses) * (options.ngram - 1)
        return (1 + rows**0.5 / 10) / (1 + row_cost * rows)

    large = tuned("lookahead", lookahead.Options(), lambda o: score(o, 0.0))
    assert (large.window, large.ngram, large.guesses) == (20, 7, 20)
    asked.clear()
    small = tuned("lookahead", lookahead.Options(), lambda o: score(o, 0.3))
    assert (small.window, small.ngram, small.guesses) == (0, 3, 1)
    assert len(asked) == 4  # itself and one neighbour for each size


def test_a_draft_is_named_by_its_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.gguf").touch()
    given = draft_model.Options(model="small.gguf")
    best = tuned("draft_model", given, lambda options: 1.1**-options.num_draft)
    assert best == draft_model.Options(model=str(tmp_path / "small.gguf"), num_draft=1)
