"""The tree against its formula, written down from the definition; what `recycling` learns, keeps apart and forgets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq, TopK
from forerun.drafters.base.ngram.token_table import PRIOR
from forerun.drafters.recycling import Options, Recycling
from tests.drafters.helpers import sequence
from tests.oracles.ngram_model import LIVE_WEIGHT
from tests.oracles.token_table import ENTRY, FADE, SET_NBYTES, WAYS, context_hashes

_native = pytest.importorskip("forerun._native")

VOCAB = 4
WORDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
ROW = st.lists(st.integers(0, 20), min_size=VOCAB, max_size=VOCAB).map(
    lambda sights: [each / max(20, sum(sights)) for each in sights]
)
"""The target's probabilities of each token; less than 1 in all, as of the likeliest of many."""
SIGHTS = st.lists(st.tuples(WORDS, ROW), max_size=8)
FILE = st.dictionaries(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2).map(tuple),
    st.tuples(st.integers(1, 31), st.lists(st.integers(0, 85), min_size=VOCAB, max_size=VOCAB)),
    max_size=4,
)


def outcome(rows: Sequence[Sequence[float]], emitted: Sequence[int], path: tuple[int, ...] = ()):
    """An outcome whose rows have these probabilities of all tokens."""
    probs = np.array(rows, np.float32)
    ids = np.arange(probs.shape[1])[None].repeat(len(probs), axis=0)
    with np.errstate(divide="ignore"):
        values = np.log(probs)
    return Outcome(path, tuple(emitted), top=TopK(ids, values, np.zeros(len(probs), np.float32)))


def begun(drafter: Recycling, prompt: Sequence[int], first: int, row=None, seq_id: int = 0) -> Seq:
    """A sequence whose first token has come, from a row of these probabilities."""
    seq = sequence([*prompt, first], seq_id, len(prompt))
    drafter.begin(seq, outcome([row or [0.0] * VOCAB], [first]))
    return seq


def observed(drafter: Recycling, seq: Seq, draft: Draft, rows, emitted, path=()) -> None:
    seq.tokens.extend(emitted)
    drafter.observe([seq], [draft], [outcome(rows, emitted, path)])


def proposed(drafter: Recycling, seq: Seq, budget: int = 64) -> Draft:
    (draft,) = drafter.propose([seq], [budget])
    return draft


def empty(**options) -> Recycling:
    """A drafter of a table without sharing of texts."""
    return Recycling(
        Options(table="none", **{"shared_tokens": 0, "min_chance": 0.02} | options), None
    )


def new_file(known):
    """A table of one bucket."""
    data = b""
    for context, (count, shares) in known.items():
        *_, mark = context_hashes(context, len(context))
        # 16 to 31 sights have an exact byte, fewer as well.
        exponent = count.bit_length() - 1
        size = exponent << 4 | ((count << 4) >> exponent) - 16
        data += (mark & 0xFFFF).to_bytes(2, "little") + bytes([size, VOCAB])
        data += b"".join(t.to_bytes(2, "little") + bytes([s]) for t, s in enumerate(shares))
    arrays = np.array([0, len(data)], np.uint32), np.frombuffer(data, np.uint8)
    return _native.FileTable(*arrays, 2)


class Formula:
    """p(t) = (c(t) + k p'(t)) / (N + k), level by level, from all that was seen."""

    def __init__(self, order: int, sights, file, texts: Sequence[Sequence[Sequence[int]]]) -> None:
        self.order, self.sights, self.file, self.texts = order, sights, file, texts

    def chances(self, context: Sequence[int], path: Sequence[int]) -> list[float]:
        """Of every token after the context and a path of guesses."""
        p = [0.0] * VOCAB
        tail = [*context, *path]
        for n in range(1, min(self.order, len(tail)) + 1):
            p = self._corrected(p, *self._counted(tuple(tail[-n:])))
        for documents in self.texts:
            p = self._corrected(p, *self._stood(documents, context, path))
        return p

    def nodes(self, context: Sequence[int], depth: int) -> dict[tuple[int, ...], float]:
        """The chance to reach each node down to a depth."""
        reached = {(): 1.0}
        for length in range(depth):
            for path in [p for p in reached if len(p) == length]:
                for token, p in enumerate(self.chances(context, path)):
                    reached[*path, token] = reached[path] * p
        del reached[()]
        return reached

    def _counted(self, key: tuple[int, ...]) -> tuple[float, list[float]]:
        total, counts = 0.0, [0.0] * VOCAB
        for context, row in self.sights:
            if tuple(context[-len(key) :]) == key:
                total = total * float(FADE) + 1
                counts = [c * float(FADE) + p for c, p in zip(counts, row, strict=True)]
        count, shares = self.file.get(key, (0, [0] * VOCAB))
        total = LIVE_WEIGHT * total + count
        return total, [
            LIVE_WEIGHT * c + count * s / 255 for c, s in zip(counts, shares, strict=True)
        ]

    def _stood(self, documents, context, path) -> tuple[float, list[float]]:
        counts = [0.0] * VOCAB
        for text in documents:
            for position in range(1, len(text)):
                before = text[:position]
                if before[len(before) - len(path) :] != [*path] or len(before) <= len(path):
                    continue
                before = before[: len(before) - len(path)]
                pairs = zip(reversed(before), reversed(context), strict=False)
                match = sum(1 for _ in itertools.takewhile(lambda ab: ab[0] == ab[1], pairs))
                if match:
                    counts[text[position]] += PRIOR / 2 * (match + len(path))
        return sum(counts), counts

    @staticmethod
    def _corrected(p: list[float], total: float, counts: list[float]) -> list[float]:
        return [(c + PRIOR * q) / (total + PRIOR) for c, q in zip(counts, p, strict=True)]


def reach(draft: Draft) -> dict[tuple[int, ...], float]:
    """The chance to reach each node of a draft, by the tokens down to it; in the draft's order."""
    reached = {}
    for node in range(len(draft)):
        path = tree.path_to(node, draft.parents)
        reached[tuple(draft.tokens[i] for i in path)] = float(
            np.prod([draft.confidence[i] for i in path])
        )
    return reached


@given(SIGHTS, FILE, WORDS, st.lists(WORDS, max_size=2), st.integers(1, 3), st.integers(0, 8))
def test_the_tree_is_that_of_the_formula(sights, file, text, past, order, num_draft) -> None:
    text, past = text[:8], [each[:4] for each in past]  # no more places than are asked
    drafter = Recycling(
        Options(table="none", order=order, min_chance=0.05, num_draft=max(1, num_draft)),
        new_file(file),
    )
    for i, (context, row) in enumerate(sights, 10):
        # A prompt of one row teaches that row alone, and nothing of it is searched by others.
        drafter.begin(sequence([*context, 0], i, len(context)), outcome([row], [0]))
    for document, words in enumerate(past, 1000):
        drafter.texts.shared.extend(document, words)
    seq = begun(drafter, [9], text[0], seq_id=1)  # the row teaches what follows 9
    seq.tokens[:] = [9, *text]
    outputs = [*past, text]
    formula = Formula(order, sights, file, [outputs, [[9, *text]]])
    expected = formula.nodes([9, *text], depth=4)

    drafted = reach(proposed(drafter, seq, num_draft))
    best = sorted((c for c in expected.values() if c >= 0.05), reverse=True)[:num_draft]
    for path, p in drafted.items():
        if len(path) <= 4:
            assert p == pytest.approx(expected[path], rel=1e-4)
    assert [*drafted.values()] == sorted(drafted.values(), reverse=True)
    if all(len(path) <= 4 for path in drafted) and not any(abs(c - 0.05) < 1e-5 for c in best):
        assert [*drafted.values()] == pytest.approx(best, rel=1e-4)


def test_every_row_is_learned_also_below_a_rejected_guess() -> None:
    drafter = empty(order=1, num_draft=1)
    seq = begun(drafter, [0], 1)
    draft = Draft((2, 3), (-1, -1))
    sure = [[0.0] * 8 for _ in range(3)]
    sure[0][5] = sure[1][6] = sure[2][7] = 0.9  # after 1, after the guess 2, after the guess 3
    observed(drafter, seq, draft, sure, [5])
    for after, expected in ((1, 5), (2, 6), (3, 7)):
        other = begun(drafter, [0], after, seq_id=after)
        assert proposed(drafter, other).tokens == (expected,)


def test_what_one_sequence_taught_is_guessed_in_others_but_its_prompt_is_not() -> None:
    drafter = empty(num_draft=4)
    prompt = [11, 12, 13, 14, 15]
    seq = begun(drafter, prompt, 21)
    assert proposed(drafter, seq) == EMPTY_DRAFT
    for tail in range(1, 5):
        other = begun(drafter, [30], prompt[tail - 1], seq_id=100 + tail)
        assert proposed(drafter, other) == EMPTY_DRAFT
    shared = Recycling(Options(table="none", min_chance=0.02), None)
    first = begun(shared, prompt, 21, seq_id=1)
    first.tokens += [22, 23]
    second = begun(shared, [9, 12], 13, seq_id=2)
    third = begun(shared, [9, 21], 22, seq_id=3)
    drafts = shared.propose([first, second, third], [8] * 3)
    assert [d.tokens[:1] for d in drafts] == [(), (), (23,)]


def test_repeats_in_the_own_prompt_are_guessed() -> None:
    drafter = empty()
    seq = begun(drafter, [1, 2, 3, 4, 5, 9, 1], 2)
    assert proposed(drafter, seq, 3) == Draft.chain([3, 4, 5])


def test_new_rows_weigh_more_than_old_ones() -> None:
    drafter, before, after = empty(order=1, num_draft=2), [0.9, 0.1], [0.1, 0.9]
    shares = []
    for i, row in enumerate([before] * 3 + [after] * 4):
        seq = begun(drafter, [5], 3, seq_id=i)
        observed(drafter, seq, EMPTY_DRAFT, [row], [1])
        other = begun(drafter, [5], 3, seq_id=100)
        drafted = reach(proposed(drafter, other))
        shares.append(drafted[(1,)] / (drafted[(0,)] + drafted[(1,)]))
    assert shares[:3] == pytest.approx([0.1] * 3)
    new = 1 / (1 + 0.7 + 0.49 + 0.343)  # the share of the newest of four rows
    assert shares[3] == pytest.approx(0.9 * new + 0.1 * (1 - new))
    assert shares[2:] == sorted(shares[2:])
    assert shares[-1] > 0.7


def test_what_was_learned_longest_ago_is_forgotten_first() -> None:
    table = _native.LiveTable(1, SET_NBYTES)
    for token in range(WAYS):
        table.learn([token], [7], [1.0])
    table.learn([0], [7], [1.0])
    table.learn([WAYS], [7], [1.0])  # 1 was learned longest ago
    known = {int(row["hash"]) for row in np.frombuffer(table.entries(), ENTRY)}
    hashes = {next(context_hashes([t], 1)): t for t in range(WAYS + 1)}
    assert {hashes[h] for h in known} == {0, *range(2, WAYS + 1)}


def test_more_tokens_than_it_asked_for_are_understood() -> None:
    """As beside a drafter that wants more of them: then they are columns of a wider array."""
    drafter = empty(order=1, num_draft=1)
    wide = outcome([[0.1, 0.2, 0.6], [0.7, 0.1, 0.1]], [3]).top.part(range(2), 2)
    assert not wide.ids.flags.c_contiguous
    seq = begun(drafter, [0], 1)
    seq.tokens.append(3)
    drafter.observe([seq], [Draft.chain([2])], [Outcome((), (3,), top=wide)])
    assert proposed(drafter, begun(drafter, [0], 2, seq_id=1)).tokens == (0,)


def test_tables_are_counted_whole() -> None:
    drafter = Recycling(Options(table_mb=0.5), None)
    texts = drafter.texts.nbytes(0, 64)
    assert drafter.memory(0, 64).tables >= drafter.live.__sizeof__() + texts > 500_000
