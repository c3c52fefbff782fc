"""A signal handler that raises at any line, as time limits do: nothing hangs or is left, and no token is wrong."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import forerun
from forerun import LLM, SamplingParams
from forerun.system.signals import handled_later

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no such signal here")
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, n=2)
PROMPTS = ["one two one two one two", "three"]
TRACED = tuple(
    str(Path(forerun.__file__).parent / name)
    for name in (
        "engine/loop.py",
        "engine/lock.py",
        "engine/intake.py",
        "engine/engine.py",
        "llm.py",
        "system/signals.py",
    )
)


class TimeLimit(Exception):
    """What the handler raises."""


@pytest.fixture
def limited() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, handler)
    yield
    with handled_later():
        pass  # one that raised while handlers came back is put right the next time
    assert signal.getsignal(signal.SIGALRM) is handler
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def llm(tiny_gguf: Path) -> LLM:
    return LLM(str(tiny_gguf), drafter="recycling", controller=False, threads=1, max_num_seqs=3)


def answers(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, PARAMS)
    return [one.token_ids for output in outputs for one in output.outputs]


def streamed(llm: LLM) -> list[int]:
    return [token for event in llm.stream(PROMPTS[0], PARAMS) for token in event.token_ids]


def signalled(work: Callable[[], object], at: int) -> int:
    """Do it with a signal at the `at`th line of the files; return how many lines ran."""
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGALRM)
        return local

    def each(frame: FrameType, event: str, arg: object) -> object:
        return local if frame.f_code.co_filename in TRACED else None

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "stride", [97, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("work", [answers, streamed])
def test_a_handler_that_raises_at_any_line_leaves_nothing(llm, work, stride, limited):
    whole = work(llm)
    num_lines = signalled(lambda: work(llm), 0)
    assert num_lines > 500
    num_raised = 0
    for at in range(1, num_lines, stride):
        try:
            assert (signalled(lambda: work(llm), at), work(llm))[1] == whole
        except TimeLimit:
            num_raised += 1
        assert not llm.loop.step(), at
        assert not llm.engine.scheduler.running
    assert num_raised > 0.9 * num_lines / stride
    assert work(llm) == whole
    assert 0 < llm.engine.stats.accepted < llm.engine.stats.drafted


def test_a_signal_ends_a_run_after_the_step_in_which_it_came(llm, limited, monkeypatch):
    whole, step, num_steps = answers(llm), llm.engine.step, 0

    def signalled_step() -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 2:
            signal.raise_signal(signal.SIGALRM)
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "step", signalled_step)
        with pytest.raises(TimeLimit):
            answers(llm)
    assert num_steps == 2
    assert not llm.loop.step()
    assert answers(llm) == whole
