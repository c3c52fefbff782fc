"""What is printed while an answer comes."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from forerun import LLM, SamplingParams
from forerun.cli import console
from forerun.core.types import Event, TextPiece
from forerun.drafting.base import Drafter


@contextmanager
def one_terminal() -> Iterator[io.StringIO]:
    """Where answers and log lines go, in the order in which they come."""
    shown = io.StringIO()
    logger, handler = logging.getLogger("forerun"), logging.StreamHandler(shown)
    handler.setFormatter(logging.Formatter("[%(message)s]"))
    logger.addHandler(handler)
    with redirect_stdout(shown):
        yield shown
    logger.removeHandler(handler)


def test_what_is_logged_while_an_answer_comes_is_told_after_its_line() -> None:
    def events() -> Iterator[Event]:
        yield Event(0, (1,), (TextPiece("one ", from_draft=False),), None, None)
        logging.getLogger("forerun.engine.proposer").warning("it failed")
        yield Event(0, (2,), (TextPiece("two", from_draft=False),), None, None)

    with one_terminal() as terminal:
        assert console.show(events())
        logging.getLogger("forerun.engine.proposer").warning("at once")
    assert terminal.getvalue() == "one two\n[it failed]\n[at once]\n"


class Failing(Drafter):
    """Is broken from its third proposal on."""

    calls = 0

    def propose(self, seqs, budgets):
        self.calls += 1
        if self.calls > 2:
            raise KeyError("lost")
        return super().propose(seqs, budgets)


def test_a_drafter_that_fails_does_not_interrupt_the_answer(default_model) -> None:
    llm = LLM(str(default_model), drafter=Failing(), max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with one_terminal() as terminal:
        completion, _, is_whole = console.answer(llm, "The sea is", params)
    assert is_whole
    text, _, logged = terminal.getvalue().partition("\n[")
    assert text == completion.text
    assert "failed in propose" in logged
