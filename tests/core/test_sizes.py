"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import sizes


@given(st.integers(0, 10**14))
def test_what_is_shown_is_read_back_within_its_digits(nbytes: int) -> None:
    assert sizes.parse(sizes.shown(nbytes)) == pytest.approx(nbytes, rel=0.006)


@pytest.mark.parametrize("text", ["", "GB", "-1", "5 XB", "1e9", "5 GB more"])
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500MB or 5GB"):
        sizes.parse(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("5GB", 5 * 10**9), ("5 gb", 5 * 10**9), ("0", 0), ("1.5M", 1_500_000), ("2KiB", 2048)],
)
def test_units_are_decimal_and_with_an_i_binary(text: str, nbytes: int) -> None:
    assert sizes.parse(text) == nbytes
