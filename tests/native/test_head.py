"""Head and embedding, native and in torch: all logits, the largest, some columns, rows given as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache as memo
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.types import TopK
from forerun.model.backends.native import load
from forerun.model.config import ModelConfig
from forerun.model.model import Model
from tests.arrays import assert_close, normal, same_bits
from tests.native.models import (
    GATED,
    TYPES,
    VOCAB,
    random_weights,
    reference,
    stored,
    text,
)

WIDTH = GATED.hidden_size
CONFIGS = {
    "q4": (replace(GATED, logits_divisor=1.7, embedding_multiplier=3.0), "q4_1"),
    "float": (
        replace(GATED, norm="layer", gated_mlp=False, rope=None, learned_position_offset=2),
        "f32",
    ),
    "tied": (replace(GATED, tied_head=True, num_layers=1), "q8_0"),
}
kinds = st.sampled_from(sorted(CONFIGS))
TORCH = ["torch"] if find_spec("torch") is not None else []
names = st.sampled_from([*TORCH, *((i, n) for i in _native.runnable_isas() for n in (1, 2))])
# Few distinct values, so that most rows have ties; 4 times the huge ones is infinite.
numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3e38, -3e38])
awkward = st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
law = settings(deadline=None, max_examples=60)


@memo
def model_of(kind: str, name: str | tuple[str, int]) -> Model:
    """The torch decoder, or a native one of an instruction set and a number of threads."""
    config, dtype = CONFIGS[kind]
    weights = random_weights(config, dtype)
    if isinstance(name, str):
        return reference(config, weights)
    return load(config, weights, isa=name[0], num_threads=name[1])


@memo
def chooser(name: str | tuple[str, int]) -> Model:
    """A model whose logits are 4 times its hidden state, so that a test can choose them.

    From the last ones their neighbour's is subtracted, which gives NaN where both are infinite.
    """
    config = ModelConfig("identity", WIDTH, WIDTH, 16, 1, 1, 1, 16, 16)
    weights = random_weights(config)
    head = 4 * np.eye(WIDTH, dtype=np.float32)
    head[-20:] -= head[-21:-1].copy()
    weights["head"] = stored("head", head, "f32")
    if isinstance(name, str):
        return reference(config, weights)
    return load(config, weights, isa=name[0], num_threads=name[1])


def oracle(logits: Floats, k: int) -> TopK:
    """By sorting, NaN first."""
    rows = [
        sorted(range(len(row)), key=lambda i, row=row: (not math.isnan(row[i]), -row[i], i))[:k]
        for row in logits.tolist()
    ]
    ids = np.array(rows, np.int64).reshape(len(rows), k)
    return TopK(ids, np.take_along_axis(logits, ids, 1))


def assert_sums(found: np.ndarray, logits: Floats) -> None:
    """Near those in fp64: a rounding of the result, and a few of the sum."""
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.reduce(logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(found.astype(float), expected, rtol=2e-7, atol=2e-6)


def states(num_rows: int, seed: int = 0) -> Floats:
    return normal(num_rows, WIDTH, seed=seed)


def assert_equal(a: TopK, b: TopK) -> None:
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.values, b.values)


@law
@given(kind=kinds, name=names, num_rows=st.integers(0, 70), k=st.integers(1, VOCAB))
def test_the_largest_logits_are_those_of_the_head(kind, name, num_rows: int, k: int) -> None:
    model, hidden = model_of(kind, name), states(num_rows, seed=k)
    top = model.topk(hidden, k)
    assert_equal(top, oracle(model.head(hidden), k))
    assert model.topk(hidden, 1).ids[:, 0].tolist() == model.head(hidden).argmax(-1).tolist()


@law
@given(kind=kinds, name=names, num_rows=st.integers(0, 70), k=st.integers(1, VOCAB))
def test_the_normaliser_is_that_of_all_logits(kind, name, num_rows: int, k: int) -> None:
    """Asking for it changes nothing else; k, rows beside it, threads and instruction set do not change its bits."""
    model, hidden = model_of(kind, name), states(num_rows, seed=k)
    logits = np.full((num_rows, VOCAB), np.nan, np.float32)
    top = model.topk(hidden, k, log_normaliser=True, logits=logits)
    assert same_bits(logits, model.head(hidden))
    assert_equal(top, model.topk(hidden, k))
    assert_sums(top.log_normaliser, model.head(hidden))
    for row in range(0, num_rows, 9):
        alone = model.topk(hidden[row : row + 1], 1, log_normaliser=True)
        assert same_bits(alone.log_normaliser[0], top.log_normaliser[row])
    if name != "torch":
        portable = model_of(kind, ("portable", 1)).topk(hidden, k, log_normaliser=True)
        assert same_bits(portable.log_normaliser, top.log_normaliser)


@pytest.mark.parametrize("isa", _native.runnable_isas())
def test_a_large_vocabulary_is_summed_alike_by_any_number_of_threads(isa: str) -> None:
    """Many blocks, the last of them not full."""
    config = replace(GATED, vocab_size=5000, num_layers=1)
    weights, hidden = random_weights(config, "q8_0"), 3 * states(20)
    found = []
    for num_threads in (1, 2, 3):
        model = load(config, weights, isa=isa, num_threads=num_threads)
        found.append(model.topk(hidden, 8, log_normaliser=True))
        assert_equal(found[-1], oracle(model.head(hidden), 8))
        assert_sums(found[-1].log_normaliser, model.head(hidden))
        assert same_bits(found[-1].log_normaliser, found[0].log_normaliser)


@law
@given(rows=st.lists(st.lists(awkward, min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=4))
def test_logits_that_are_there_give_the_same(rows) -> None:
    torch = pytest.importorskip("torch")
    from forerun.lab.torch.decoder import top_k

    logits = np.array(rows, np.float32)
    for k in (1, 2, 8, VOCAB):
        top = top_k(torch.from_numpy(logits), k, log_normaliser=True)
        assert_equal(top, oracle(logits, k))
        assert_sums(top.log_normaliser, logits)


@law
@given(
    name=names,
    rows=st.lists(st.lists(numbers, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4),
    k=st.integers(1, WIDTH),
)
def test_equal_logits_infinities_and_nan_have_their_order(name, rows, k: int) -> None:
    model, hidden = chooser(name), np.array(rows, np.float32)
    top = model.topk(hidden, k, log_normaliser=True)
    assert_equal(top, oracle(model.head(hidden), k))
    assert_equal(model.topk(hidden, k), top)
    assert_sums(top.log_normaliser, model.head(hidden))


@law
@given(rows=st.lists(st.lists(awkward, min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=4))
def test_the_oracle_is_what_torch_says(rows) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor(rows)
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    assert_equal(oracle(logits.numpy(), VOCAB), TopK(ids.numpy(), values.numpy()))
    assert_close(values, logits.topk(VOCAB).values)


@law
@given(
    kind=kinds,
    name=names,
    num_rows=st.integers(0, 70),
    ids=st.lists(st.integers(0, VOCAB - 1), max_size=100),
)
def test_some_columns_are_the_heads(kind, name, num_rows: int, ids: list[int]) -> None:
    model, hidden, columns = model_of(kind, name), states(num_rows), np.array(ids, np.int64)
    expected = model.head(hidden)[:, columns]
    assert same_bits(model.head_rows(hidden, columns), expected)
    if ids:
        assert same_bits(model.head_part(columns).logits(hidden), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_part_of_the_head_is_a_copy_of_its_rows_in_every_format(dtype: str) -> None:
    config = replace(GATED, hidden_size=512, intermediate_size=256, num_heads=8, num_layers=1)
    model, x = load(config, random_weights(config, dtype), num_threads=2), normal(3, 512)
    ids = np.array([76, 3, 3, 40, *range(20, 50)])
    part = model.head_part(ids)
    assert same_bits(part.logits(x), model.head(x)[:, ids])
    tile_nbytes = model._native.packed("head")[2].nbytes // 5  # of 16 tokens each
    assert part.nbytes == 3 * tile_nbytes


@law
@given(kind=kinds, name=names, num_rows=st.integers(1, 70), row=st.integers(0, 69))
def test_a_row_is_the_same_alone(kind, name, num_rows: int, row: int) -> None:
    model, hidden = model_of(kind, name), states(num_rows)
    row %= num_rows
    columns = np.arange(0, VOCAB, 3)
    parts: tuple[Callable[[Floats], Floats], ...] = (
        model.head,
        lambda x: model.topk(x, 5).values,
        lambda x: model.topk(x, 5, log_normaliser=True).log_normaliser,
        lambda x: model.head_rows(x, columns),
    )
    for part in parts:
        assert same_bits(part(hidden[row : row + 1])[0], part(hidden)[row])


@law
@given(kind=kinds, name=names, num_rows=st.integers(1, 150), cut=st.integers(0, 149))
def test_rows_given_as_vectors_are_their_tokens(kind, name, num_rows: int, cut: int) -> None:
    """All of them or the last ones, and the tokens beside the vectors do not matter."""
    model, tokens, cut = model_of(kind, name), text(num_rows), min(cut, num_rows - 1)
    inputs = model.embed(np.array(tokens))
    cache = model.new_cache(2, 160)
    plain = model.forward(Batch((Segment(0, 0, tokens),)), cache, (0,))
    batch = Batch((Segment(1, 0, tokens[:cut]),))
    if cut:
        first = model.forward(batch, cache, (0,), inputs=inputs[:cut])
        cache.keep(1, range(cut))
        assert same_bits(first.last, plain.last[:cut])
    blank = Segment(1, cut, (0,) * (num_rows - cut))
    rest = model.forward(Batch((blank,)), cache, (0,), inputs=inputs[cut:])
    assert same_bits(rest.last, plain.last[cut:])
    assert same_bits(rest.aux[0], plain.aux[0][cut:])


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_instruction_sets_and_torch_embed_alike(kind: str) -> None:
    ids = np.arange(VOCAB)[::-1].copy()
    expected = model_of(kind, "torch").embed(ids)
    for isa in _native.runnable_isas():
        assert same_bits(model_of(kind, (isa, 1)).embed(ids), expected)


@pytest.mark.parametrize("name", [*TORCH, ("auto", 1)])
def test_what_is_not_in_the_vocabulary_is_refused(name) -> None:
    model = model_of("tied", name)
    hidden = states(2)
    for k in (0, VOCAB + 1):
        with pytest.raises(ValueError, match=f"k must be 1 to {VOCAB}"):
            model.topk(hidden, k)
    for ids in (np.array([0, VOCAB]), np.array([-1 - VOCAB])):
        with pytest.raises((ValueError, IndexError)):
            model.head_rows(hidden, ids)
        with pytest.raises((ValueError, IndexError)):
            model.head_part(ids).logits(hidden)
        with pytest.raises((ValueError, IndexError)):
            model.embed(ids)
