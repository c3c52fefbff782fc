"""What a table would bring, against a plain simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.base.ngram import counting
from forerun.lab.train import table

_native = pytest.importorskip("forerun._native")

WORDS = st.lists(st.integers(0, 3), max_size=12)
TEXTS = st.lists(st.tuples(WORDS, WORDS), max_size=6)


def naive_tau(texts, file, order: int) -> float:
    """Passes counted one by one: what is accepted of each tree, by walking its paths."""
    passes = total = 0
    for prompt, answer in texts:
        here, left = [*prompt], [*answer]
        while left:
            tokens, parents, _ = _native.grow_tree(
                here[-order:],
                file,
                _native.LiveTable(order, 0),
                (),
                table.MEASURED_NODES,
                table.MIN_CHANCE,
            )
            paths = {-1: ()}
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                paths[node] = (*paths[parent], token)
            most = max(len(p) for p in paths.values() if tuple(left[: len(p)]) == p)
            taken = min(most + 1, len(left))
            here, left = here + left[:taken], left[taken:]
            passes, total = passes + 1, total + taken
    return total / passes if passes else 1.0


@given(TEXTS, TEXTS)
def test_tokens_a_pass_are_those_of_a_plain_simulation(texts, others) -> None:
    made = counting.make(texts, 3, 100_000, 2)
    file = _native.FileTable(made.offsets, made.data, 2)
    for asked in (texts, others):
        assert table.tokens_a_pass(asked, file, 3) == pytest.approx(naive_tau(asked, file, 3))
    assert table.tokens_a_pass(texts, None, 3) == 1.0


def test_a_table_guesses_the_text_it_was_made_of_better_with_more_room() -> None:
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 500, 12).tolist() for _ in range(40)]
    texts = [((1,), [t for i in rng.integers(0, 40, 20) for t in phrases[i]]) for _ in range(30)]
    taus = []
    for nbytes in (0, 2000, 8000, 100_000):
        made = counting.make(texts, 4, nbytes, 2)
        file = _native.FileTable(made.offsets, made.data, 2)
        taus.append(table.tokens_a_pass(texts, file, 4))
    assert taus == sorted(taus)
    assert taus[0] == 1.0
    assert taus[-1] > 3.5
