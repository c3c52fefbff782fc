"""What is asked: a fair choice of prompts, groups of one category, conversations with plain answers."""

import pytest

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.hub.prompt_sets import read
from forerun.lab.bench.workload import choose, groups, only

PROMPTS = [
    TaskPrompt(f"{c}{i}", c, (f"{c}{i}?",))
    for c, n in (("a", 5), ("b", 2), ("c", 1))
    for i in range(n)
]


def ids(prompts):
    return [prompt.id for prompt in prompts]


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (1, ["a0"]),
        (3, ["a0", "b0", "c0"]),
        (5, ["a0", "a1", "b0", "b1", "c0"]),
        (7, ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]),
        (99, ids(PROMPTS)),
        (None, ids(PROMPTS)),
    ],
)
def test_a_limit_takes_from_every_category_in_turn(limit, chosen):
    assert ids(choose(PROMPTS, limit)) == chosen


def test_only_some_categories_in_the_files_order():
    assert ids(only(PROMPTS, ["c", "b"])) == ["b0", "b1", "c0"]
    assert only(PROMPTS, []) == PROMPTS
    with pytest.raises(ConfigError, match="unknown category 'd'"):
        only(PROMPTS, ["a", "d"])


def test_units_hold_one_category_and_every_prompt_once():
    units = groups(PROMPTS, 2)
    assert [group.id for group in units] == ["a0+a1", "a2+a3", "a4", "b0+b1", "c0"]
    assert all({p.category for p in group.prompts} == {group.category} for group in units)


def test_our_own_prompts_cover_what_people_do():
    prompts = read()
    assert len(prompts) == 40
    assert len(set(ids(prompts))) == 40
    assert {p.category for p in prompts} == {
        *("summary", "code_edit", "chat", "code", "maths", "rag", "json", "translation", "writing")
    }
    assert any(len(p.turns) > 1 for p in prompts)


@pytest.mark.parametrize(
    ("call", "what"), [(lambda: groups(PROMPTS, 0), "batch"), (lambda: choose(PROMPTS, 0), "limit")]
)
def test_sizes_below_one_are_refused(call, what):
    with pytest.raises(ConfigError, match=f"{what} must be at least 1"):
        call()
