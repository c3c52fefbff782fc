"""How many functions a step enters: as many as who wants to understand a drafted token has to read."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import accumulate, cycle
from pathlib import Path
from types import FrameType

import pytest

import forerun
from forerun import LLM, SamplingParams

MOST_FUNCTIONS, MOST_FILES = 46, 19
PARTS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
"""Of other functions; they are read with them."""
SECONDS = (0.0, 0.01, 1.0, 0.0, 0.0, 0.01)
"""Between the looks at the clock in a step: asking is cheap, and a pass takes the same for any number of rows."""

PROMPTS = (
    "Write the numbers from one to thirty in words, one after the other, with commas.",
    "Tell me a story about a fox and a crow.",
    "List five fruits, one a line.",
)

Function = tuple[str, str]


def walks(llm: LLM) -> list[frozenset[Function]]:
    """The functions of forerun that each drafted step of some answers enters, by file and name."""
    source, engine = str(Path(forerun.__file__).parent), llm.engine
    step, found = engine.step, []

    def watched():
        entered: set[Function] = set()

        def look(frame: FrameType, event: str, arg: object) -> None:
            code = frame.f_code
            ours = code.co_filename.startswith(source) and not code.co_qualname.endswith(PARTS)
            if event == "call" and ours:
                entered.add((code.co_filename, code.co_qualname))

        before = engine.stats.drafted
        sys.setprofile(look)
        try:
            return step()
        finally:
            sys.setprofile(None)
            if engine.stats.drafted > before:
                found.append(frozenset(entered))

    engine.step = watched
    try:
        for prompt in PROMPTS:
            llm.generate(prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    finally:
        del engine.step
    return found


@pytest.fixture(scope="module")
def llm(default_model: Path) -> LLM:
    """With the drafter that is used by default, where drafting pays."""
    found = LLM(str(default_model), threads=1)
    found.engine.timers.clock = accumulate(cycle(SECONDS)).__next__
    return found


def test_a_steady_step_enters_few_functions(llm):
    walks(llm)  # what is made once is there
    found = walks(llm)
    assert len(found) >= 10
    ((steady, _),) = Counter(found).most_common(1)
    files = {file for file, _ in steady}
    print(f"{len(steady)} functions in {len(files)} files", *sorted(steady), sep="\n")
    assert len(steady) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES
