"""Flattened rows: the same product before rounding, and kernels that are their reference bit for bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.core.arrays import Floats
from forerun.core.errors import LoadError
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.flat import SPLITS, FlatRows, Split
from forerun.weights.stored import StoredTensor
from tests.arrays import same_bits
from tests.native.models import GATED, flat, native, prefill, random_weights, text
from tests.native.models import reference as torch_model

ISAS = _native.runnable_isas()
NUM_OUT, NUM_IN = 128, 160
WIDE = replace(GATED, hidden_size=NUM_IN)
FORMS = ["q4_c", "q8_c"]


def decoder_with(weight: StoredTensor, isa: str = "auto") -> NativeDecoder:
    decoder = NativeDecoder(WIDE, num_threads=1, isa=isa)
    decoder.add("layers.0.q", weight, None)
    return decoder


def apply(decoder: NativeDecoder, x: np.ndarray) -> Floats:
    out = np.empty((len(x), NUM_OUT), np.float32)
    decoder._native.apply("layers.0.q", np.ascontiguousarray(x, np.float32), out)
    return out


def expected(weight: StoredTensor, x: np.ndarray) -> Floats:
    """By torch; without it the test is skipped."""
    torch = pytest.importorskip("torch")
    from forerun.lab.torch import reference

    codes = weight.codes()
    rows = codes.flat
    assert rows is not None
    scales = torch.from_numpy(codes.scales[:, 0])
    if rows.is_by_row:
        places, of_rows = reference.flatten_by_row(
            torch.from_numpy(x.astype(np.float32)), torch.from_numpy(rows.inverse)
        )
        assert places.abs().max() == 127
        return reference.flat_linear(
            places, torch.from_numpy(codes.codes), scales, None, of_rows
        ).numpy()
    pieces = torch.from_numpy(rows.pieces)
    places = reference.flatten(
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(rows.inverse),
        pieces,
        rows.limit,
        rows.split == "even",
    )
    assert places.abs().max() <= rows.limit
    wide = torch.from_numpy(codes.codes)[:, reference.flat_columns(pieces)[0]]
    return reference.flat_linear(places, wide, scales, None).numpy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "limit"), [("q4_c", 7), ("q4_c", 127), ("q8_c", 127)])
@pytest.mark.parametrize("split", SPLITS)
def test_kernels_have_the_references_bits_for_any_number_of_rows(
    isa: str, form: str, limit: int, split: Split
) -> None:
    weight = flat("q", (NUM_OUT, NUM_IN), form, split, limit)
    rows = weight.codes().flat
    assert rows is not None
    assert rows.width > NUM_IN
    x = np.random.default_rng(0).standard_normal((21, NUM_IN)) * 6  # some inputs are out of range
    need_the_references_bits(weight, isa, x)


def need_the_references_bits(weight: StoredTensor, isa: str, x: np.ndarray) -> None:
    decoder, whole = decoder_with(weight, isa), expected(weight, x)
    for num_rows in (1, 2, 3, 4, 7, 8, 13, 21):
        assert same_bits(apply(decoder, x[:num_rows]), whole[:num_rows])
        assert same_bits(apply(decoder, x[-num_rows:]), whole[-num_rows:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_with_scales_of_their_own_have_the_references_bits(isa: str, form: str) -> None:
    """However large a row is, and whatever rows are beside it."""
    x = np.random.default_rng(0).standard_normal((21, NUM_IN)) * 6
    x *= np.logspace(-34, 34, 21)[:, None]
    x[3], x[4] = 0, 1e-32
    need_the_references_bits(flat("q", (NUM_OUT, NUM_IN), form, limit=0), isa, x)


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_stays_in_its_row(isa: str) -> None:
    decoder = decoder_with(flat("q", (NUM_OUT, NUM_IN), "q8_c", limit=0), isa)
    x = np.random.default_rng(5).standard_normal((9, NUM_IN))
    clean = apply(decoder, x)
    x[2, 7], x[4, 100], x[8, 3] = np.nan, np.inf, -np.inf
    dirty = apply(decoder, x)
    assert np.isnan(dirty[[2, 4, 8]]).all()
    assert same_bits(np.delete(dirty, [2, 4, 8], 0), np.delete(clean, [2, 4, 8], 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_extreme_codes_do_not_overflow(isa: str, form: str) -> None:
    most = 2 ** (FORMATS[form].bits - 1) - 1
    pieces = np.full(NUM_IN, 3, np.int32)
    rows = FlatRows(np.full(NUM_IN, 1 / 127, np.float32), pieces, 127, "spill")
    for sign in (1, -1):
        codes = np.full((NUM_OUT, NUM_IN), sign * most, np.int8)
        flat = Codes(codes, np.ones((NUM_OUT, 1), np.float32), flat=rows)
        data = codes.view(np.uint8)
        weight = StoredTensor("q", codes.shape, FORMATS[form], data, lambda codes=flat: codes)
        for x in (np.full((9, NUM_IN), 99.0), np.full((9, NUM_IN), -99.0)):
            out = apply(decoder_with(weight, isa), x)
            assert (out == float(np.sign(x[0, 0]) * sign * most * 3 * 127 * NUM_IN)).all()


def test_numbers_out_of_range_are_cut_and_neighbours_are_not_touched() -> None:
    weight = flat("q", (NUM_OUT, NUM_IN), "q8_c")
    decoder = decoder_with(weight)
    x = np.random.default_rng(5).standard_normal((6, NUM_IN))
    clean = apply(decoder, x)
    x[2, 7], x[4, 100], x[5, 3] = np.nan, np.inf, -np.inf
    dirty = apply(decoder, x)
    x[4, 100], x[5, 3] = 1e9, -1e9
    assert same_bits(dirty[[4, 5]], apply(decoder, x)[[4, 5]])
    assert np.isfinite(dirty).all()
    assert same_bits(dirty[[0, 1, 3]], clean[[0, 1, 3]])


numbers = st.integers(-400, 400)


@given(
    st.lists(st.tuples(numbers, numbers, st.integers(1, 5)), min_size=1, max_size=8),
    st.sampled_from([7, 127]),
    st.sampled_from(SPLITS),
)
@settings(deadline=None, max_examples=100)
def test_flattening_is_exact_before_rounding(
    inputs: list[tuple[int, int, int]], limit: int, split: Split
) -> None:
    """In exact arithmetic a widened row times repeated weights is the row times the weights, within range."""
    torch = pytest.importorskip("torch")
    from forerun.lab.torch import reference

    total, flattened = Fraction(0), Fraction(0)
    for x, weight, pieces in inputs:
        code = max(-pieces * limit, min(pieces * limit, x))
        total += code * weight
        if split == "even":
            flattened += sum(Fraction(code, pieces) * weight for _ in range(pieces))
            continue
        many = torch.full((1,), pieces)
        row = reference.flatten(torch.tensor([[float(x)]]), torch.ones(1), many, limit, False)
        assert row.abs().max() <= limit
        flattened += sum(int(place) * weight for place in row[0])
    assert flattened == total


@pytest.mark.parametrize("form", [*FORMS, "q8_c row", "q4_c row"])
def test_a_flattened_model_is_close_to_its_weights(form: str) -> None:
    weights = random_weights(GATED, form)
    ours, theirs = (
        prefill(model, text(12)) for model in (native(GATED, form), torch_model(GATED, weights))
    )
    assert 0 < (ours - theirs).std() < 0.2 * theirs.std()


def test_a_head_of_flattened_rows_is_its_embeddings_rows() -> None:
    """Of all tokens or of some, which have memory of their own; with factors of the inputs, too."""
    model = native(GATED, "q8_c row")
    hidden = np.random.default_rng(0).standard_normal((5, GATED.hidden_size)).astype(np.float32)
    ids = np.array([0, 3, 17, GATED.vocab_size - 1])
    weights = model.head_weights(None)
    assert same_bits(weights, model.embed(np.arange(GATED.vocab_size)))
    whole = model.head(hidden)
    assert np.abs(whole - hidden @ weights.T).max() < 0.05 * whole.std()
    assert same_bits(model.head_rows(hidden, ids), whole[:, ids])
    assert same_bits(model.head_part(ids).logits(hidden), whole[:, ids])


def test_the_weights_are_those_of_unflattened_inputs() -> None:
    for split in SPLITS:
        codes = flat("q", (NUM_OUT, NUM_IN), "q8_c", split).codes()
        rows = codes.flat
        assert rows is not None
        x = rows.steps.astype(np.float64)  # each input is one step
        places = rows.pieces if split == "even" else 1
        sums = (codes.codes * places).sum(1) * codes.scales[:, 0]
        np.testing.assert_allclose(x @ codes.values().T.astype(np.float64), sums, rtol=1e-4)


def test_matrices_that_read_the_same_inputs_must_flatten_them_alike() -> None:
    weights = random_weights(GATED, "q8_c")
    codes = weights["layers.1.k"].codes()
    assert codes.flat is not None
    rows = replace(codes.flat, steps=codes.flat.steps * 2)
    other = replace(weights["layers.1.k"], read=lambda: replace(codes, flat=rows))
    decoder = load_native(GATED, weights | {"layers.1.k": other})
    with pytest.raises(
        ValueError, match="layer 1 that read the same inputs flatten or order them differently"
    ):
        prefill(decoder, text(3))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"limit": 128}, "'q.input_limit' must hold a number from 1 to 127"),
        ({"pieces": np.zeros(NUM_IN, np.int32)}, "'q.input_pieces' must hold numbers from 1 on"),
        ({"pieces": np.full(NUM_IN, 999, np.int32)}, "65536 in all at most"),
        ({"steps": np.zeros(NUM_IN, np.float32)}, "'q.input_step' must hold positive numbers"),
        ({"steps": np.full(NUM_IN, np.nan, np.float32)}, "'q.input_step' must hold positive"),
    ],
)
def test_inputs_out_of_range_are_refused(change: dict[str, object], complaint: str) -> None:
    codes = flat("q", (NUM_OUT, NUM_IN), "q4_c").codes()
    assert codes.flat is not None
    wrong = replace(codes, flat=replace(codes.flat, **change))
    weight = replace(flat("q", (NUM_OUT, NUM_IN), "q4_c"), read=lambda: wrong)
    with pytest.raises(LoadError, match=complaint):
        decoder_with(weight)


def test_codes_and_scales_out_of_range_are_refused() -> None:
    codes = flat("q", (NUM_OUT, NUM_IN), "q4_c").codes()
    for change, complaint in (
        (
            {"codes": np.full_like(codes.codes, -8)},
            "'q.weight_packed' must hold codes from -7 to 7",
        ),
        ({"scales": np.full_like(codes.scales, np.nan)}, "'q.weight_scale' must hold finite"),
    ):
        wrong = replace(codes, **change)
        weight = replace(flat("q", (NUM_OUT, NUM_IN), "q4_c"), read=lambda w=wrong: w)
        with pytest.raises(LoadError, match=complaint):
            decoder_with(weight)
    with pytest.raises(ValueError, match="cannot read flattened rows"):
        native(GATED)._native.set_flat(
            "embed",
            "q8_c",
            np.zeros((GATED.vocab_size, 64), np.int8),
            np.ones(GATED.vocab_size, np.float32),
            np.ones(64, np.float32),
            np.ones(64, np.int32),
            127,
            False,
            None,
        )
