"""Flattening: outliers cost the other inputs nothing, and what is rounded together shares its rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.flatten import (
    KINDS,
    Kind,
    product_error,
    round_weights,
    rounded,
    search_rows,
)
from forerun.weights.flat import FLAT_CODES, FlatRows
from tests.lab.quantize.test_awq import inputs_of


def sample(num_out: int = 24, num_in: int = 64) -> tuple[torch.Tensor, Inputs]:
    """A weight and inputs of which one channel in sixteen is large."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(256, num_in, generator=random)
    x = x @ (torch.eye(num_in) + 0.3 * torch.randn(num_in, num_in, generator=random))
    x[:, ::16] *= 20
    weight = torch.randn(num_out, num_in, generator=random)
    return weight, inputs_of(x)


def rows_of(max_widening: float, *kinds: Kind) -> FlatRows:
    weight, inputs = sample()
    kinds = kinds or ("tensor",)
    return search_rows(inputs, weight, bits=8, max_widening=max_widening, kinds=kinds)


def test_rows_are_no_wider_than_allowed_and_hold_what_was_seen() -> None:
    _, inputs = sample()
    for max_widening in (0.0, 0.5, 1.0):
        rows = rows_of(max_widening)
        assert rows.pieces.sum() <= 64 * (1 + max_widening)
        reach = torch.from_numpy(rows.steps * rows.limit * rows.pieces)
        assert (reach >= inputs.largest * 1.4).all()  # and more
    assert rows.width > 64


def test_places_of_their_own_round_outliers_finer_than_none() -> None:
    weight, inputs = sample()

    def error(max_widening: float) -> float:
        near = rounded(rows_of(max_widening), inputs.sample) - inputs.sample
        return float((near @ weight.T).square().sum())

    assert error(1.0) < 0.5 * error(0.0)


def test_rows_that_leave_the_range_get_a_scale_of_their_own() -> None:
    """Which inputs of other texts do: those of the sample decide."""
    weight, inputs = sample()
    sample_rows = inputs.sample.clone()
    sample_rows[::4] *= 20
    other = replace(inputs, sample=sample_rows)
    fixed, own = (
        search_rows(other, weight, bits=8, max_widening=0.5, kinds=kinds)
        for kinds in (("tensor",), KINDS)
    )
    assert (fixed.is_by_row, own.is_by_row) == (False, True)

    def error(rows: FlatRows) -> float:
        return product_error([weight], round_weights([weight], other, rows, 8), other)

    assert error(own) < 1e-3 < 0.1 < error(fixed)


def test_hadamards_matrix_rounds_outliers_finer() -> None:
    """In inputs and in weights: without it the same rows err more."""
    weight, inputs = sample()
    for bits in (4, 8):
        rows = search_rows(inputs, weight, bits=bits, max_widening=0.0, kinds=("row",))
        assert rows.uses_hadamard
        other, plain = (
            product_error([weight], round_weights([weight], inputs, each, bits), inputs)
            for each in (rows, replace(rows, uses_hadamard=False))
        )
        assert other < 0.8 * plain


def test_a_rows_own_scale_does_not_depend_on_other_rows() -> None:
    rows = rows_of(0.0, "row")
    _, inputs = sample()
    whole = rounded(rows, inputs.sample)
    for i in (0, 7, 100):
        assert (rounded(rows, inputs.sample[i : i + 1]) == whole[i]).all()


def test_matrices_of_one_site_share_their_rows_and_keep_their_range() -> None:
    weight, inputs = sample()
    rows = rows_of(0.5)
    for bits in (4, 8):
        first, second = round_weights(weight.split(16), inputs, rows, bits)
        assert first.flat is second.flat is rows
        assert (len(first.codes), len(second.codes)) == (16, 8)
        assert abs(first.codes).max() == -FLAT_CODES[bits][0]


def test_unused_inputs_are_no_harm() -> None:
    weight, inputs = sample()
    x = inputs.sample * (torch.arange(64) > 7)
    dead = inputs_of(x)
    rows = search_rows(dead, weight, bits=4, max_widening=0.5)
    (parts,) = round_weights([weight], dead, rows, 4)
    assert product_error([weight], [parts], dead) < 0.05
