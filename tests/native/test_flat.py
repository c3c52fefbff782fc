"""Flattened rows: the same product before rounding, and kernels that are their reference bit for bit."""

from __future__ import annotations

from dataclasses import replace

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
from forerun.weights.flat import FLAT_CODES, FlatRows
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
            torch.from_numpy(x.astype(np.float32)),
            torch.from_numpy(rows.inverse),
            uses_hadamard=rows.uses_hadamard,
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
    )
    assert places.abs().max() <= rows.limit
    wide = torch.from_numpy(codes.codes)[:, reference.flat_columns(pieces)[0]]
    return reference.flat_linear(places, wide, scales, None).numpy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "limit"), [("q4_c", 7), ("q4_c", 127), ("q8_c", 127)])
def test_kernels_have_the_references_bits_for_any_number_of_rows(
    isa: str, form: str, limit: int
) -> None:
    weight = flat("q", (NUM_OUT, NUM_IN), form, limit)
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
@pytest.mark.parametrize("uses_hadamard", [False, True])
def test_rows_with_scales_of_their_own_have_the_references_bits(
    isa: str, form: str, uses_hadamard: bool
) -> None:
    """However large a row is, and whatever rows are beside it."""
    x = np.random.default_rng(0).standard_normal((21, NUM_IN)) * 6
    x *= np.logspace(-34, 34, 21)[:, None]
    x[3], x[4] = 0, 1e-32
    weight = flat("q", (NUM_OUT, NUM_IN), form, limit=0, uses_hadamard=uses_hadamard)
    need_the_references_bits(weight, isa, x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("uses_hadamard", [False, True])
def test_what_is_not_finite_stays_in_its_row(isa: str, uses_hadamard: bool) -> None:
    weight = flat("q", (NUM_OUT, NUM_IN), "q8_c", limit=0, uses_hadamard=uses_hadamard)
    decoder = decoder_with(weight, isa)
    x = np.random.default_rng(5).standard_normal((9, NUM_IN))
    clean = apply(decoder, x)
    x[2, 7], x[4, 100], x[8, 3] = np.nan, np.inf, -np.inf
    dirty = apply(decoder, x)
    assert np.isnan(dirty[[2, 4, 8]]).all()
    assert same_bits(np.delete(dirty, [2, 4, 8], 0), np.delete(clean, [2, 4, 8], 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_extreme_codes_do_not_overflow(isa: str, form: str) -> None:
    pieces = np.full(NUM_IN, 3, np.int32)
    rows = FlatRows(np.full(NUM_IN, 1 / 127, np.float32), pieces, 127)
    for extreme in FLAT_CODES[FORMATS[form].bits]:
        codes = np.full((NUM_OUT, NUM_IN), extreme, np.int8)
        flat = Codes(codes, np.ones((NUM_OUT, 1), np.float32), flat=rows)
        data = codes.view(np.uint8)
        weight = StoredTensor("q", codes.shape, FORMATS[form], data, lambda codes=flat: codes)
        for x in (np.full((9, NUM_IN), 99.0), np.full((9, NUM_IN), -99.0)):
            out = apply(decoder_with(weight, isa), x)
            assert (out == float(np.sign(x[0, 0]) * extreme * 3 * 127 * NUM_IN)).all()


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
)
@settings(deadline=None, max_examples=100)
def test_flattening_is_exact_before_rounding(
    inputs: list[tuple[int, int, int]], limit: int
) -> None:
    """In exact arithmetic a widened row times repeated weights is the row times the weights, within range."""
    torch = pytest.importorskip("torch")
    from forerun.lab.torch import reference

    total = flattened = 0
    for x, weight, pieces in inputs:
        code = max(-pieces * limit, min(pieces * limit, x))
        total += code * weight
        many = torch.full((1,), pieces)
        row = reference.flatten(torch.tensor([[float(x)]]), torch.ones(1), many, limit)
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
    codes = flat("q", (NUM_OUT, NUM_IN), "q8_c").codes()
    assert codes.flat is not None
    x = codes.flat.steps.astype(np.float64)  # each input is one step
    sums = codes.codes.sum(1) * codes.scales[:, 0]
    np.testing.assert_allclose(x @ codes.values().T.astype(np.float64), sums, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_hadamards_matrix_spreads_outliers_and_leaves_the_weights(isa: str) -> None:
    """The weights of rotated codes are those of the inputs, by numpy and by the kernels; a large input costs less."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((NUM_OUT, NUM_IN)).astype(np.float32)
    x = random.standard_normal((9, NUM_IN)).astype(np.float32)
    x[:, 5] *= 100
    errors = []
    for uses_hadamard in (False, True):
        rows = FlatRows.by_row(np.ones(NUM_IN, np.float32), uses_hadamard=uses_hadamard)
        inner = rows.to_codes(weight)
        scales = np.abs(inner).max(1, keepdims=True) / 127
        codes = Codes(np.round(inner / scales).astype(np.int8), scales, flat=rows)
        stored = StoredTensor("q", weight.shape, FORMATS["q8_c"], codes.codes, lambda c=codes: c)
        decoder, values = decoder_with(stored, isa), np.empty_like(weight)
        decoder._native.unpack("layers.0.q", values)
        np.testing.assert_allclose(values, codes.values(), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(values, weight, atol=0.05)
        errors.append(np.square(apply(decoder, x) - x @ weight.T).mean())
    assert errors[1] < 0.25 * errors[0]


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
            {"codes": np.full_like(codes.codes, -9)},
            "'q.weight_packed' must hold codes from -8 to 7",
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
