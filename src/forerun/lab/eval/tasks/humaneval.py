"""HumanEval: functions from their docstrings; the problem's tests decide. Chen et al., arXiv 2107.03374.

`reference` holds `entry_point`, the function's name, and `test`, the source of `check(candidate)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from forerun.core.errors import ConfigError
from forerun.core.types import TaskPrompt
from forerun.lab.eval import sandbox

MAX_TOKENS = 512
RUNS_CODE = True

_CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def question(prompt: TaskPrompt) -> str:
    """The beginning of the program, to be completed."""
    return (
        "Complete this Python function. Answer with the whole function in one code block.\n\n"
        f"```python\n{prompt.turns[0].rstrip()}\n```"
    )


def is_right(prompt: TaskPrompt, answer: str) -> bool:
    """True if the tests pass in the sandbox."""
    return sandbox.passes(program(prompt, answer))


def program(prompt: TaskPrompt, answer: str) -> str:
    """The answer's code where the problem's function belongs, then the problem's tests.

    Code is what stands in the first code block, or all of the answer without one. If it defines
    the function, it takes the place of the problem's; else it is read as the function's body.
    """
    reference = prompt.reference
    if not isinstance(reference, Mapping) or not {"entry_point", "test"} <= reference.keys():
        raise ConfigError(f"prompt {prompt.id} needs a 'reference' with 'entry_point' and 'test'")
    name = str(reference["entry_point"])
    block = _CODE_BLOCK.search(answer)
    code = block[1] if block else answer
    begin = prompt.turns[0]
    head = f"def {name}("
    if head in code:
        begin = begin[: begin.rfind(head)]
    return f"{begin}{code}\n{reference['test']}\ncheck({name})\n"
