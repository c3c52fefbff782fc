"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import sizes


@given(st.integers(0, 10**14))
def test_what_is_shown_is_read_back_within_its_digits(nbytes: int) -> None:
    assert sizes.parse(sizes.format_size(nbytes)) == pytest.approx(nbytes, rel=0.006)


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


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [("600MiB", 600 << 20), ("0.5GB", 5 * 10**8), ("1 GiB", 1 << 30), ("700000 kB", 7 * 10**8)],
)
def test_a_budget_has_an_exact_unit(given: str, nbytes: int) -> None:
    assert sizes.parse_budget(given) == sizes.parse_budget(nbytes) == nbytes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("600", "has no unit: write 600MiB or 600MB"),
        ("600 mb", "has no exact unit: write 600MB"),
        ("2g", "has no exact unit: write 2GB"),
        ("1gib", "has no exact unit: write 1GiB"),
        ("-1", "is not above 0"),
        ("-5GB", "is not above 0"),
        ("0MB", "is not above 0"),
        (0, "is not above 0"),
        (-1, "is not above 0"),
        ("", "is not a size"),
        ("much", "is not a size"),
        ("1e9B", "is not a size"),
        ("600 MB more", "is not a size"),
        (True, "is not a size"),
        (0.5, "is not a size"),
    ],
)
def test_what_is_no_budget_is_said(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sizes.parse_budget(given)  # type: ignore[arg-type]
