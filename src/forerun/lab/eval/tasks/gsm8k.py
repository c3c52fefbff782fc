"""GSM8K: grade school maths in words; the last number of an answer counts. Cobbe et al., arXiv 2110.14168.

`reference` is the worked solution, which ends in `#### number`.
"""

from __future__ import annotations

import re
from decimal import Decimal

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt

MAX_TOKENS = 400
RUNS_CODE = False

_MARK = "####"
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def question(prompt: TaskPrompt) -> str:
    """The problem, and the form the answer should have."""
    return (
        f"{prompt.turns[0]}\n\nThink step by step. "
        f"Write the answer on the last line, as: {_MARK} number"
    )


def is_right(prompt: TaskPrompt, answer: str) -> bool:
    """True if the answer's number equals the reference's."""
    if not isinstance(prompt.reference, str) or _MARK not in prompt.reference:
        raise ConfigError(f"prompt {prompt.id} needs a 'reference' text that ends in '#### number'")
    expected = number(prompt.reference)
    return expected is not None and number(answer) == expected


def number(text: str) -> Decimal | None:
    """Read the number after the last `####`, else the last number of the text."""
    _, mark, tail = text.rpartition(_MARK)
    found = _NUMBER.findall(tail)
    if mark and found:
        return _value(found[0])
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def _value(digits: str) -> Decimal:
    return Decimal(digits.replace(",", ""))
