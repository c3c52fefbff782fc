"""What is printed while an answer comes."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click
import pytest

from forerun import LLM, SamplingParams
from forerun.cli import console
from forerun.cli.main import main
from forerun.core.types import Event, TextPiece
from forerun.drafters.base.contract import Drafter
from forerun.engine.stats import SpecStats


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


class TerminalErrors(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_how_far_a_long_prompt_is_read(default_model, monkeypatch) -> None:
    llm = LLM(str(default_model), drafter="none", max_model_len=512, prefill_chunk=32)
    monkeypatch.setattr(console, "SILENT_S", -1.0)
    monkeypatch.setattr("sys.stderr", told := TerminalErrors())
    params = SamplingParams(temperature=0, max_tokens=3)
    with one_terminal():
        completion, measured, _ = console.answer(llm, "word " * 200, params)
    total = measured.num_prompt
    said = re.findall(r"reading the prompt, ([\d,]+) of (\d+), \d+:\d\d left", told.getvalue())
    assert said == [(str(read), str(total)) for read in range(32, total, 32)]
    assert told.getvalue().endswith("\r\033[2K"), "the line is gone before the answer begins"
    assert llm.generate("word " * 200, params)[0].outputs[0].text == completion.text
    monkeypatch.setattr("sys.stderr", told := io.StringIO())
    with one_terminal():
        console.answer(llm, "other " * 100, params)
    assert told.getvalue() == "", "no terminal"


@pytest.mark.parametrize("colour", ["", "1"])
def test_an_error_is_broken_between_words_in_a_terminal_and_is_one_line_elsewhere(
    monkeypatch, colour
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.argv", ["forerun", "generate", "-t", "many", "hi"])
    if colour:
        monkeypatch.setenv("NO_COLOR", colour)
    said = []
    for stream in (TerminalErrors(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        with pytest.raises(SystemExit, match="2"):
            main()
        said.append(click.unstyle(stream.getvalue()).splitlines())
    assert max(map(len, said[0])) <= 30 < len(said[1][0])
    assert " ".join(line.strip() for line in said[0]) == said[1][0]


@pytest.mark.parametrize("columns", [4, 20, 40, 200])
def test_a_line_that_is_drawn_again_never_breaks_into_two(monkeypatch, columns) -> None:
    """Else each second of a long path's loading leaves a line behind."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(console, "SILENT_S", 0.01)
    monkeypatch.setattr("sys.stderr", told := TerminalErrors())
    with console.working(f"loading /{'folder/' * 12}model.gguf"):
        while told.getvalue().count("\r\033[2K") < 3:
            time.sleep(0.01)
    drawn = [click.unstyle(line) for line in told.getvalue().split("\r\033[2K")]
    assert max(map(len, drawn)) <= max(columns - 1, 4)
    assert drawn[-1] == "", "the line is gone in the end"
    assert columns < 200 or drawn[1] == f"loading /{'folder/' * 12}model.gguf ..."


def test_what_is_said_of_work_stands_in_its_line(monkeypatch) -> None:
    monkeypatch.setattr(console, "SILENT_S", 0.01)
    monkeypatch.setattr("sys.stderr", told := TerminalErrors())
    with console.working("loading model.gguf") as say:
        say("1.2 of 4.9 GB")
        while told.getvalue().count("\r\033[2K") < 2:
            time.sleep(0.01)
    assert "loading model.gguf ... 1.2 of 4.9 GB, 0 s" in click.unstyle(told.getvalue())


def measured(tokens: int, ttft_s: float | None, num_cached: int = 0) -> str:
    counts = console.Measured(tokens, 2.5, SpecStats(), 0.0, 0.0, ttft_s, num_cached, 1000)
    return counts.line("suffix")


def test_the_line_of_an_answer_tells_both_speeds_and_one_token_has_none() -> None:
    assert (
        measured(5, 0.5) == "5 tokens, 2.0 tok/s; first token after 0.50 s, prompt 2,000 tokens/s"
    )
    assert measured(1, 0.5) == "1 token; first token after 0.50 s, prompt 2,000 tokens/s"
    for num_cached in (999, 1000):
        assert "prompt" not in measured(5, 0.5, num_cached)
    assert measured(5, 0.5, 1000) == "5 tokens, 2.0 tok/s; first token after 0.50 s"
    assert measured(0, None) == "0 tokens"


def test_a_note_breaks_between_words_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    for stream, expected in (
        (TerminalErrors(), "accepted 10 of 20 \ndrafted\n"),
        (io.StringIO(), "accepted 10 of 20 drafted\n"),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        console.note("accepted 10 of 20 drafted", dim=True)
        assert stream.getvalue() == expected
