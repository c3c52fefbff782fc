"""Lookahead against definitions written independently: the paper's mask, its positions, and its window by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.drafters.lookahead import Lookahead, Options, Pool, State, Window
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for, plain
from tests.tiny import tiny_model

SIZES = st.tuples(st.integers(1, 9), st.integers(2, 7), st.integers(1, 6))
VOCAB = 50


def drafter(window=5, ngram=4, guesses=5) -> Lookahead:
    return Lookahead(Options(window=window, ngram=ngram, guesses=guesses), VOCAB)


def sequence(tokens, seed=0) -> Seq:
    return Seq(0, list(tokens), SamplingParams(temperature=0, max_tokens=None), seed)


@given(SIZES)
def test_mask_and_positions_are_those_of_the_paper(sizes):
    """The joint step of section 4.2 of the method: rows of the window, then the guesses, by their places."""
    width, n, num_guesses = sizes
    nodes = [("row", 0, i) for i in range(1, width)]
    nodes += [("row", row, i) for row in range(1, n - 1) for i in range(width)]
    nodes += [("guess", g, j) for g in range(num_guesses) for j in range(n - 1)]

    def sees(a, b) -> bool:
        (kind, x, y), (other, u, v) = a, b
        if kind != other:
            return False  # window and guesses are invisible to each other
        if kind == "guess":
            return x == u and v <= y  # causal within one guess
        if u == 0:
            return v <= y  # row 0 up to one's own column
        return v == y and u <= x  # one's own column down to oneself

    def position(node) -> int:
        kind, x, y = node
        return 1 + y if kind == "guess" else x + y

    token = {node: i for i, node in enumerate(nodes)}  # all different: nothing is shared
    rows = [[token["row", 0, i] for i in range(1, width)]]
    rows += [[token["row", row, i] for i in range(width)] for row in range(1, n - 1)]
    current = len(nodes)
    pool = Pool(num_guesses)
    for g in reversed(range(num_guesses)):
        pool.add([(current, *(token["guess", g, j] for j in range(n - 1)))])
    lookahead = drafter(*sizes)
    lookahead.states[0] = State(pool, Window(rows, n - 1))
    (draft,) = lookahead.propose([sequence([current])], [1000])

    assert draft.tokens == tuple(range(len(nodes)))
    assert [1 + depth for depth in tree.depths(draft.parents)] == [position(p) for p in nodes]
    mask = [[sees(a, b) for b in nodes] for a in nodes]
    assert tree.ancestors(draft.parents).tolist() == mask


def say(context: tuple[int, ...]) -> int:
    """A model: any function of the tokens so far."""
    return hash((context[-5:], len(context) % 3)) % VOCAB


def outcome_of(seq: Seq, draft: Draft) -> Outcome:
    """What the model says at every node, and the greedy walk."""
    contexts = [tuple(seq.tokens)]
    for node in range(len(draft)):
        path = tree.path_to(node, draft.parents)
        contexts.append((*seq.tokens, *(draft.tokens[i] for i in path)))
    following = [say(context) for context in contexts]
    logits = np.eye(VOCAB, dtype=np.float32)[following]
    path, emitted, node = [], [], -1
    while node is not None:
        emitted.append(following[1 + node])
        below = tree.children(draft.parents).get(node, [])
        node = next((c for c in below if draft.tokens[c] == emitted[-1]), None)
        path += [] if node is None else [node]
    return Outcome(tuple(path), tuple(emitted), logits)


class ByHand:
    """The window as a table of tokens by (row, position after the last token), filled as the paper says."""

    def __init__(self, first_row, n):
        self.n = n
        self.table = [{1 + i: token for i, token in enumerate(first_row)}]

    def step(self, tokens) -> list[tuple[int, ...]]:
        top = {0: tokens[-1], **self.table[0]}
        above = [top, *self.table[1:]]
        last_row = len(self.table) - 1
        new = {}
        for column in range(len(top)):
            context = [*tokens, *(top[i] for i in range(1, column + 1))]
            context += [above[row][column + row] for row in range(1, last_row + 1)]
            new[column + last_row + 1] = say(tuple(context))
        if len(self.table) < self.n - 1:  # filling: a row more, and everyone is one position nearer
            self.table = [self._nearer(row, i) for i, row in enumerate([*self.table, new])]
            return []
        rows = [*above, new]
        grams = [tuple(rows[i][c + i] for i in range(self.n)) for c in range(len(top))]
        self.table = [self._nearer(row, i) for i, row in enumerate([*self.table[1:], new])]
        return grams

    def _nearer(self, row, index) -> dict[int, int]:
        first = 1 if index == 0 else index
        return {p - 1: token for p, token in row.items() if p - 1 >= first}


@given(SIZES, st.integers(0, 1000))
@settings(max_examples=60)
def test_the_window_moves_as_by_hand(sizes, seed):
    width, n, _ = sizes
    lookahead = drafter(*sizes)
    seq = sequence([(7 * i + seed) % VOCAB for i in range(12)], seed)
    lookahead.begin(seq, Outcome((), (seq.tokens[-1],)))
    state = lookahead.states[0]
    pooled: list[tuple[int, ...]] = []
    add = Pool.add
    hand = ByHand(state.window.rows[0], n)
    for step in range(n + 6):
        (draft,) = lookahead.propose([seq], [10_000])
        outcome = outcome_of(seq, draft)
        expected = hand.step(tuple(seq.tokens))
        assert bool(expected) == (step >= n - 2)
        seq.tokens += outcome.emitted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pool, "add", lambda self, grams: pooled.extend(grams) or add(self, grams))
            lookahead.observe([seq], [draft], [outcome])
        assert pooled == expected
        pooled.clear()
        assert [list(row.values()) for row in hand.table] == state.window.rows
        if step >= n - 2:
            assert state.window.num_columns == width


@given(
    SIZES,
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), max_size=12),
    st.integers(0, 80),
)
def test_every_guess_can_be_walked_down_within_the_budget(sizes, grams, budget):
    n = sizes[1]
    lookahead = drafter(*sizes)
    seq = sequence([1, 2, 3, 0])
    lookahead.begin(seq, Outcome((), (0,)))
    pool = lookahead.states[0].pool
    pool.add((0, *gram[: n - 1]) for gram in grams)
    (draft,) = lookahead.propose([seq], [budget])
    assert len(draft) <= budget
    children = tree.children(draft.parents)
    for guess in pool.after(0) if budget >= 80 else []:
        node = -1
        for token in guess:
            node = next(c for c in children.get(node, []) if draft.tokens[c] == token)


MODEL = tiny_model(3, sharpness=3.0)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_full_match_emits_n_tokens(n):
    (answer,) = plain(MODEL, LOOPING[:1], GREEDY)
    tokens = [*LOOPING[0], *answer]
    lookahead = Lookahead(Options(window=0, ngram=n, guesses=100), 24)
    begin = lookahead.begin

    def begin_knowing(seq, outcome):
        begin(seq, outcome)
        grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        lookahead.states[seq.id].pool.add(grams)

    lookahead.begin = begin_knowing  # type: ignore[method-assign]
    (run,) = complete(engine_for(MODEL, lookahead, draft_budget=1000), LOOPING[:1], GREEDY)
    assert run.seq.generated == answer
    assert run.stats.passes == math.ceil((len(answer) - 1) / n)


@pytest.mark.parametrize("sizes", [(1, 2, 1), (1, 5, 2), (3, 2, 3), (4, 3, 2), (8, 5, 8)])
@pytest.mark.parametrize("budget", [1000, 20, 3])
def test_any_size_says_what_plain_decoding_says(sizes, budget):
    options = Options(window=sizes[0], ngram=sizes[1], guesses=sizes[2])
    engine = engine_for(MODEL, Lookahead(options, 24), draft_budget=budget)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, GREEDY)
    assert engine.stats.accepted > 0


def test_the_window_finds_what_the_text_never_said():
    """Without n-grams of the text in the pool, what is accepted was found by the window."""
    lookahead = Lookahead(Options(window=8, ngram=3, guesses=8, text_ngrams=False), 24)
    engine = engine_for(MODEL, lookahead)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == plain(MODEL, LOOPING, GREEDY)
    assert engine.stats.accepted > engine.stats.passes / 4


def test_the_pool_holds_ngrams_of_the_text_unless_they_are_left_out():
    pools = []
    for text_ngrams in (True, False):
        lookahead = Lookahead(Options(text_ngrams=text_ngrams), VOCAB)
        seq = sequence([1, 2, 3, 4])
        lookahead.begin(seq, Outcome((), (4,)))
        lookahead.propose([seq], [63])
        pools.append(lookahead.states[0].pool.ngrams)
    assert pools == [{1: {(2, 3): None}, 2: {(3, 4): None}}, {}]
    with pytest.raises(ConfigError, match="leave nothing to guess"):
        Options(window=0, text_ngrams=False)


def test_a_draft_that_was_cut_leaves_the_window_as_it_was():
    lookahead, seq = drafter(), sequence([1, 2, 3, 4])
    lookahead.begin(seq, Outcome((), (4,)))
    window = lookahead.states[0].window
    before = [[*row] for row in window.rows]
    (draft,) = lookahead.propose([seq], [63])
    seq.tokens.append(5)
    lookahead.observe([seq], [draft.trim(2)], [Outcome((), (5,), np.zeros((3, VOCAB), np.float32))])
    assert window.rows == before
    nothing = Outcome((), (5,), np.zeros((1, VOCAB), np.float32))
    lookahead.observe([seq], [EMPTY_DRAFT], [nothing])  # nothing was proposed
    assert window.rows == before


@pytest.mark.parametrize("sizes", [(1, 2, 1), (6, 3, 2), (9, 5, 3)])
def test_the_window_works_on_to_the_end_of_an_answer(sizes):
    """Only the columns that reach beyond it are taken off, so that nothing is cut and every pass counts."""
    width, n, _ = sizes
    lookahead = drafter(*sizes)
    seq = Seq(0, [1, 2, 3, 4, 5], SamplingParams(temperature=0, max_tokens=30), 0)
    lookahead.begin(seq, Outcome((), (seq.tokens[-1],)))
    while (left := 30 - len(seq.generated)) > 0:
        (draft,) = lookahead.propose([seq], [1000])
        window = lookahead.states[0].window
        if left < n - 1:
            assert len(draft) <= sizes[2] * (n - 1)  # known n-grams alone
        else:
            depths = tree.depths(draft.parents[: window.num_nodes])
            assert max(depths, default=-1) + 1 == min(width + n - 3, left - 1)
        outcome = outcome_of(seq, draft)
        seq.tokens.append(outcome.emitted[0])
        lookahead.observe([seq], [draft], [Outcome((), outcome.emitted[:1], outcome.logits)])


def test_the_window_begins_with_words_of_the_prompt_chosen_by_the_seed():
    def rows(seed, **sizes):
        lookahead = drafter(**sizes)
        lookahead.begin(sequence(range(20, 40), seed), Outcome((), ()))
        return lookahead.states[0].window.rows

    assert rows(1, window=12) == rows(1, window=12) != rows(2, window=12)
    assert set(rows(1, window=12)[0]) <= set(range(20, 40))
    assert len(rows(1, window=12, ngram=5)[0]) == 12 + 5 - 3


def test_the_pool_forgets_what_was_seen_longest_ago():
    pool = Pool(2)
    pool.add([(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (9, 9, 9)])
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(9) == [(9, 9)]
    assert pool.after(5) == []


def test_without_a_window_and_anything_said_before_nothing_is_drafted():
    lookahead, seq = drafter(window=0), sequence([1, 2, 3, 4])
    lookahead.begin(seq, Outcome((), (4,)))
    assert lookahead.propose([seq], [63]) == [EMPTY_DRAFT]


@pytest.mark.parametrize("sizes", [(5, 4, 2), (8, 2, 3), (4, 3, 2)])
def test_a_smaller_budget_narrows_the_window_and_a_larger_one_widens_it(sizes):
    width, n, _ = sizes
    lookahead = drafter(*sizes)
    seq = sequence(range(1, 9))
    lookahead.begin(seq, Outcome((), (8,)))
    columns = []
    for budget in [1000] * n + [2 * (n - 1) + 1] * 3 + [1000] * 3:
        (draft,) = lookahead.propose([seq], [budget])
        window = lookahead.states[0].window
        assert len(draft) <= budget
        assert len(draft) >= window.num_nodes == (n - 1) * window.num_columns - 1 or n > 2
        columns.append(window.num_columns)
        outcome = outcome_of(seq, draft)
        seq.tokens.append(outcome.emitted[0])
        lookahead.observe([seq], [draft], [Outcome((), outcome.emitted[:1], outcome.logits)])
    assert columns[n - 1] == columns[-1] == width
    assert 1 <= min(columns[n : n + 3]) <= max(columns[n : n + 3]) < width


def test_a_step_of_the_default_has_six_rows():
    """The last token's among them: two fewer than the kernels take at once, which an answer's clock likes better."""
    options = Options()
    assert (options.window + options.guesses) * (options.ngram - 1) == 6
