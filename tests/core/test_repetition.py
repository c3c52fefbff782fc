"""What an answer says again is counted, and what it says once is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.core.repetition import RUN, Repeats, is_much, num_repeated

ids = st.lists(st.integers(0, 5), max_size=60)


@given(ids)
def test_the_count_is_that_of_runs_that_stood_before(tokens: list[int]) -> None:
    runs = [tokens[i - RUN : i] for i in range(RUN, len(tokens) + 1)]
    assert num_repeated(tokens) == sum(run in runs[:i] for i, run in enumerate(runs))


@given(ids, st.lists(ids, max_size=8))
def test_an_answer_that_grows_is_counted_as_a_whole_one(
    prompt: list[int], parts: list[list[int]]
) -> None:
    repeats, tokens = Repeats(len(prompt)), [*prompt]
    for part in parts:
        tokens += part
        assert repeats.count(tokens) == num_repeated(tokens[len(prompt) :])


@given(st.lists(st.integers(), unique=True, min_size=RUN, max_size=30), st.integers(4, 6))
def test_a_loop_is_much_and_what_is_new_is_not(tokens: list[int], times: int) -> None:
    assert num_repeated(tokens) == 0
    assert is_much(num_repeated(tokens * times), len(tokens) * times)
    assert not is_much(num_repeated(tokens), len(tokens))
