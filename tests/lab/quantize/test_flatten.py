"""Flattening: outliers cost the other inputs nothing, spilling beats splitting evenly, and GPTQ lowers the error."""

from __future__ import annotations

import pytest
import torch

from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.flatten import (
    limit_of,
    product_error,
    round_weights,
    rounded,
    search_rows,
)
from forerun.weights.flat import FlatRows, Split
from tests.lab.quantize.test_awq import inputs_of


def sample(num_out: int = 24, num_in: int = 64) -> tuple[torch.Tensor, Inputs]:
    """A weight and inputs of which one channel in sixteen is large."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(256, num_in, generator=random)
    x = x @ (torch.eye(num_in) + 0.3 * torch.randn(num_in, num_in, generator=random))
    x[:, ::16] *= 20
    weight = torch.randn(num_out, num_in, generator=random)
    return weight, inputs_of(x)


def rows_of(split: Split, widen: float, row_bits: int = 8) -> FlatRows:
    weight, inputs = sample()
    return search_rows(inputs, weight, bits=8, row_bits=row_bits, split=split, widen=widen)


@pytest.mark.parametrize("split", ["even", "spill"])
def test_rows_are_no_wider_than_allowed_and_hold_what_was_seen(split: Split) -> None:
    _, inputs = sample()
    for widen in (0.0, 0.5, 1.0):
        rows = rows_of(split, widen)
        assert rows.pieces.sum() <= 64 * (1 + widen)
        reach = rows.steps * rows.limit * (rows.pieces if split == "spill" else 1)
        if widen:
            assert (torch.from_numpy(reach) >= inputs.largest * 1.4).all()  # and more
    assert rows_of(split, 1.0).width > 64


def test_spilling_rounds_outliers_finer_than_even_pieces_or_none() -> None:
    weight, inputs = sample()

    def error(split: Split, widen: float) -> float:
        rows = search_rows(inputs, weight, bits=8, row_bits=4, split=split, widen=widen)
        near = rounded(rows, inputs.sample) - inputs.sample
        return float((near @ weight.T).square().sum())

    none, even, spill = error("spill", 0.0), error("even", 1.0), error("spill", 1.0)
    assert spill < 0.5 * min(none, even)


@pytest.mark.parametrize("row_bits", [4, 8])
def test_what_later_columns_make_up_lowers_the_error(row_bits: int) -> None:
    weight, inputs = sample()
    rows = search_rows(inputs, weight, bits=4, row_bits=row_bits, split="spill", widen=0.5)
    plain, better = (
        product_error([weight], round_weights([weight], inputs, rows, 4, compensate=on), inputs)
        for on in (False, True)
    )
    assert 0 < better < 0.9 * plain


def test_matrices_of_one_site_share_their_rows_and_keep_their_range() -> None:
    weight, inputs = sample()
    rows = rows_of("spill", 0.5)
    for bits in (4, 8):
        first, second = round_weights(weight.split(16), inputs, rows, bits, compensate=False)
        assert first.flat is second.flat is rows
        assert (len(first.codes), len(second.codes)) == (16, 8)
        assert abs(first.codes).max() == limit_of(bits)


def test_unused_inputs_are_no_harm() -> None:
    weight, inputs = sample()
    x = inputs.sample * (torch.arange(64) > 7)
    dead = inputs_of(x)
    rows = search_rows(dead, weight, bits=4, row_bits=8, split="spill", widen=0.5)
    (parts,) = round_weights([weight], dead, rows, 4, compensate=True)
    assert product_error([weight], [parts], dead) < 0.05
