"""Routing by prefix: who is asked first."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forerun.server.ray.prefix import BLOCK, MAX_BLOCKS, PrefixTable, Route, blocks_of, route_of

NAMES = tuple("abcd")


def chat(*texts: str) -> dict:
    roles = ("system", "user", "assistant")
    return {"messages": [{"role": roles[i % 3], "content": text} for i, text in enumerate(texts)]}


@given(st.text(min_size=0, max_size=3 * BLOCK), st.text(max_size=2 * BLOCK))
def test_a_longer_prompt_keeps_the_blocks_of_its_beginning(first, more):
    short, long = blocks_of({"prompt": first}), blocks_of({"prompt": first + more})
    assert long[: len(short)] == short
    assert len(long) == len(first + more) // BLOCK


def test_the_next_turn_keeps_the_blocks_of_the_conversation():
    turns = [
        "You are terse. " * 40,
        "What is a river? " * 20,
        "Water that flows. " * 20,
        "And a lake?",
    ]
    first, second = blocks_of(chat(*turns[:2])), blocks_of(chat(*turns))
    assert len(second) > len(first) >= 3
    assert second[: len(first)] == first


def test_other_models_tools_and_beginnings_have_other_blocks():
    body = chat("x" * 1000)
    bodies = [
        body,
        {**body, "model": "m"},
        {**body, "tools": [{"type": "function"}]},
        chat("y" * 1000),
    ]
    assert len({blocks_of(one)[0] for one in bodies}) == len(bodies)


def test_long_prompts_cost_no_more_than_their_first_blocks():
    assert len(blocks_of({"prompt": "x" * (BLOCK * MAX_BLOCKS * 10)})) == MAX_BLOCKS


def test_ids_and_lone_surrogates_are_hashed_too():
    assert blocks_of({"prompt": [[17] * 500]})
    assert blocks_of({"prompt": "\ud800" * BLOCK})


def test_requests_meet_the_replica_that_holds_most_of_their_prompt():
    table, loads = PrefixTable(), dict.fromkeys(NAMES, 0)
    table.note(Route((1, 2)), "a")
    table.note(Route((1, 2, 3, 4)), "b")
    assert table.order(Route((1, 2, 3, 9)), loads)[0] == "b"
    table.note(Route((1, 5)), "c")
    assert table.order(Route((1, 5, 6)), loads)[0] == "c"


def test_a_hole_in_what_is_held_ends_it():
    table = PrefixTable()
    table.note(Route((1,)), "a")
    table.note(Route((2,)), "b")  # as if the first of its blocks had been forgotten
    assert table.order(Route((1, 2)), {"a": 1, "b": 0})[0] == "a"


def test_what_nobody_holds_goes_to_the_same_replica_from_every_gateway():
    loads = dict.fromkeys(NAMES, 0)
    orders = [[PrefixTable().order(Route((key,)), loads) for key in range(50)] for _ in range(2)]
    assert orders[0] == orders[1]
    assert len({order[0] for order in orders[0]}) == len(NAMES)


def test_a_replica_that_goes_moves_only_its_own():
    table, keys = PrefixTable(), [Route((key,)) for key in range(200)]
    before = [table.order(key, dict.fromkeys(NAMES, 0))[0] for key in keys]
    after = [table.order(key, dict.fromkeys(NAMES[1:], 0))[0] for key in keys]
    moved = [was for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {NAMES[0]}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(0, 2**32))
def test_no_replica_gets_much_more_than_its_share(keys, seed):
    """One popular prefix must not make one replica do all the work."""
    table, loads, rng = PrefixTable(slack=1.25), dict.fromkeys(NAMES, 0), random.Random(seed)
    running: list[str] = []
    for key in keys:
        name = table.order(Route((0, key)), loads)[0]
        assert loads[name] < 1.25 * (sum(loads.values()) + 1) / len(NAMES) + 1
        table.note(Route((0, key)), name)
        loads[name] += 1
        running.append(name)
        if rng.random() < 0.3:
            loads[running.pop(rng.randrange(len(running)))] -= 1


def test_sessions_keep_their_replica_even_where_it_has_much_to_do():
    table, loads = PrefixTable(), dict.fromkeys(NAMES, 0)
    first = table.order(Route(session="s"), loads)[0]
    table.note(Route((1,), "s"), first)
    loads[first] = 100
    assert table.order(Route((9,), "s"), loads)[0] == first
    other = Route((9,), "s", avoid=(first,))
    assert table.order(other, loads)[0] != first


def test_sessions_are_spread():
    loads = dict.fromkeys(NAMES, 0)
    counts = Counter(PrefixTable().order(Route(session=f"s{i}"), loads)[0] for i in range(400))
    assert min(counts[name] for name in NAMES) > 60


def test_what_a_lost_replica_held_is_forgotten():
    table = PrefixTable()
    table.note(Route((1, 2), "s"), "a")
    table.keep(["b"])
    table.note(Route((1,)), "b")
    assert table.order(Route((1, 2), "s"), {"a": 0, "b": 0})[0] == "b"


def test_the_table_does_not_grow_beyond_its_capacity():
    table = PrefixTable(capacity=10)
    for key in range(1000):
        table.note(Route((key,), f"s{key}"), "a")
    assert len(table._holders) == len(table._sessions) == 10
    assert table.order(Route((999,)), {"a": 0, "b": 0})[0] == "a"


def test_the_session_is_the_headers_else_the_bodys():
    assert route_of({"prompt_cache_key": "k"}, "h").session == "h"
    assert route_of({"prompt_cache_key": "k"}).session == "k"
    assert route_of({"prompt_cache_key": 7}).session == ""
