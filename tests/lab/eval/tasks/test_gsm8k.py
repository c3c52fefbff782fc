"""GSM8K: which number of an answer counts."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.lab.eval.tasks import gsm8k

PROMPT = TaskPrompt("x", "math", ("How many?",), "2 * 600 = <<2*600=1200>>1200\n#### 1,200")


@pytest.mark.parametrize(
    "answer",
    ["#### 1200", "#### $1,200.00", "It is 7.\n#### 1200 apples, 3 each", "3 x 400 = 1200."],
)
def test_an_answer_with_the_right_number_is_right(answer):
    assert gsm8k.is_right(PROMPT, answer)


@pytest.mark.parametrize(
    "answer", ["", "twelve hundred", "1200 or 7", "#### 12000", "#### -1200", "1200\n#### 7"]
)
def test_an_answer_with_another_number_or_none_is_wrong(answer):
    assert not gsm8k.is_right(PROMPT, answer)


@given(st.integers(-(10**9), 10**9), st.text("abc .$\n"))
def test_numbers_are_read_with_and_without_separators(value, words):
    for spelled in (f"{value}", f"{value:,}", f"{value}.00"):
        assert gsm8k.number(f"{words} {spelled} {words}") == Decimal(value)


def test_a_prompt_without_a_reference_is_refused_by_name():
    with pytest.raises(ConfigError, match="prompt x needs a 'reference'"):
        gsm8k.is_right(TaskPrompt("x", "math", ("How many?",)), "7")
