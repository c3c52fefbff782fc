"""HumanEval: the program that an answer becomes."""

from __future__ import annotations

import pytest

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.lab.eval.tasks import humaneval

BEGIN = '''from typing import List


def helper(x: int) -> int:
    return x + 1


def grow(xs: List[int]) -> List[int]:
    """ Add one to each.
    >>> grow([1])
    [2]
    """
'''
PROMPT = TaskPrompt(
    "HumanEval/x",
    "coding",
    (BEGIN,),
    {"entry_point": "grow", "test": "def check(grow):\n    assert grow([1, 2]) == [2, 3]\n"},
)
WHOLE = "def grow(xs: List[int]) -> List[int]:\n    return [helper(x) for x in xs]\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"Sure!\n```python\n{WHOLE}```\nThis works.",
        f"```\n{WHOLE}```\n```python\nprint('an example')\n```",
        f"```python\n{BEGIN}    return [x + 1 for x in xs]\n```",
        f"```python\n{WHOLE}",
        WHOLE,
        "    return [helper(x) for x in xs]\n",
    ],
    ids=["fenced", "first block", "with the prompt", "cut off", "bare", "body"],
)
def test_right_code_passes_in_whatever_form_it_comes(answer):
    assert humaneval.is_right(PROMPT, answer)


@pytest.mark.parametrize(
    "answer", ["", "I cannot.", "```python\ndef grow(xs):\n    return xs\n```"]
)
def test_wrong_code_or_none_does_not(answer):
    assert not humaneval.is_right(PROMPT, answer)


def test_the_question_holds_the_beginning():
    assert BEGIN.rstrip() in humaneval.question(PROMPT)


def test_a_prompt_without_tests_is_refused_by_name():
    with pytest.raises(ConfigError, match="HumanEval/x needs a 'reference'"):
        humaneval.is_right(TaskPrompt("HumanEval/x", "coding", (BEGIN,), {"test": ""}), "")
