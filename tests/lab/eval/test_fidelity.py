"""Fidelity against its definition, in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.lab.eval.fidelity import compare, nearness, pieces, reader
from forerun.lab.eval.perplexity import Score
from tests.tiny import tiny_model

MODEL, NOISY = tiny_model(3, sharpness=3.0), tiny_model(3, sharpness=3.0, noise=0.15)
TEXTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5, 4, 5], list(range(24)) * 4]


def probs(row: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def by_definition(tokens: list[int], exact: list[list[float]], logits: list[list[float]]) -> Score:
    kl = nll = 0.0
    same = 0
    for i, token in enumerate(tokens[1:]):
        p, q = probs(exact[i]), probs(logits[i])
        kl += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
        nll -= math.log(q[token])
        same += p.index(max(p)) == q.index(max(q))
    return Score(len(tokens) - 1, nll, kl=kl, same=same)


def test_a_system_is_compared_token_by_token_with_the_reference():
    systems = [reader(model, 100) for model in (MODEL, NOISY)]
    for tokens, scores in zip(TEXTS, compare(TEXTS, systems[0], systems[1:]), strict=True):
        logits = [read(tokens).tolist() for read in systems]
        for got, other in zip(scores, logits, strict=True):
            expected = by_definition(tokens, logits[0], other)
            assert (got.tokens, got.same) == (expected.tokens, expected.same)
            assert got.kl == pytest.approx(expected.kl, abs=1e-9)
            assert got.nll == pytest.approx(expected.nll)
        assert scores[0].kl == 0
        assert scores[1].kl > 0.01 * scores[1].tokens, "the noise is seen"


def test_logits_of_a_piece_are_those_the_engine_decodes_from():
    read = reader(MODEL, 8)
    first = read(TEXTS[0])
    assert torch.equal(read(TEXTS[0]), first), "nothing of the last piece is left"
    assert torch.equal(read(TEXTS[0][:4]), first[:4])


def test_means_are_over_all_tokens():
    total = Score(3, 3 * math.log(2), kl=0.3, same=2) + Score(1, math.log(2), kl=0.1, same=1)
    assert total.mean_kl == pytest.approx(0.1)
    assert total.agreement == 0.75
    assert total.ppl == pytest.approx(2)
    assert math.isnan(Score().mean_kl)


def test_a_probability_of_zero_counts_in_full_or_not_at_all():
    """A token that the reference excludes costs nothing, one that the system excludes is infinitely far."""
    exact, logits = torch.zeros(2, 3), torch.zeros(2, 3)
    exact[0, 1] = -math.inf
    assert nearness([0, 0], exact, logits).kl == pytest.approx(math.log(3 / 2))
    assert nearness([0, 0], logits, exact).kl == math.inf


@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=5),
    window=st.integers(2, 12),
    limit=st.none() | st.integers(0, 20),
)
def test_pieces_hold_the_texts_in_order(texts, window, limit):
    wanted = [text[:limit] for text in texts if len(text[:limit]) > 1]
    if not wanted:
        with pytest.raises(ConfigError, match="no two tokens"):
            pieces(texts, window, limit)
        return
    cut = pieces(texts, window, limit)
    assert all(2 <= len(piece) <= window for piece in cut)
    whole = [text[: len(text) - (len(text) % window == 1)] for text in wanted]
    assert [t for piece in cut for t in piece] == [t for text in whole for t in text]


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="at least 2 tokens, got 1"):
        pieces(TEXTS, 1)
    with pytest.raises(ConfigError, match="give a smaller --window"):
        reader(MODEL, MODEL.config.max_position + 1)
