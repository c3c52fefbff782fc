"""What people see: text as it streams, drafted tokens tinted, one line of results, notes on stderr."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.terminal import keys_unseen
from forerun.cli.wrap import WordWrap
from forerun.system import background
from forerun.system.device import peak_nbytes

if TYPE_CHECKING:
    from forerun.core.params import SamplingParams
    from forerun.core.types import Event
    from forerun.engine.loop import Request
    from forerun.engine.outputs import CompletionOutput
    from forerun.engine.stats import SpecStats
    from forerun.llm import LLM, Prompt

DRAFTED = "\033[30;48;5;115m{}\033[0m"
"""A drafted token in a terminal: black on pale green."""
SILENT_S = 1.0
"""Seconds that something takes without a word."""


def note(text: object, **style: Any) -> None:
    """Print what is not the answer on stderr, in a terminal broken between words and in a style of `click.style`."""
    wrap = WordWrap.of(sys.stderr)
    _secho(wrap.push(str(text)) + wrap.flush(), **style)


def redraw(text: str) -> None:
    """Draw a terminal's last line again, of a longer text its end: what is broken into two lines cannot be."""
    most = max(shutil.get_terminal_size().columns - 1, 4)
    click.echo("\r\033[2K", err=True, nl=False, color=True)
    if text:
        _secho(text if len(text) <= most else f"...{text[3 - most :]}", nl=False, dim=True)


def _secho(text: str, **style: Any) -> None:
    click.secho(text, err=True, color=False if "NO_COLOR" in os.environ else None, **style)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr, in a terminal only, while something takes its time; what is said of it is added."""
    said = ""

    def say(text: str) -> None:
        nonlocal said
        said = f"{text}, "

    if not sys.stderr.isatty():
        yield say
        return
    redraw(f"{what} ...")
    has_ended, start_s = threading.Event(), time.monotonic()

    def count() -> None:
        while not has_ended.wait(SILENT_S):
            lasted_s = time.monotonic() - start_s
            redraw(f"{what} ... {said}{lasted_s:.0f} s")

    counting = background.start("forerun-seconds", count)
    try:
        yield say
    finally:
        has_ended.set()
        counting.join()
        redraw("")


@contextmanager
def log_later() -> Iterator[None]:
    """Hold what is logged inside back until the end: an answer is printed in one piece."""
    logger, records = logging.getLogger("forerun"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        for record in records:
            logger.handle(record)


@log_later()
def show(events: Iterable[Event]) -> bool:
    """Print text as it becomes final, drafted tokens tinted. False if Ctrl-C ended it; what was printed stands."""
    is_tinted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    wrap = WordWrap.of(sys.stdout)
    try:
        with keys_unseen(sys.stdout):
            for event in events:
                for piece in event.pieces:
                    style = DRAFTED if piece.from_draft and is_tinted else "{}"
                    click.echo(
                        wrap.push(piece.text, style), nl=False, color=True
                    )  # its colours stay
    except KeyboardInterrupt:
        return False
    finally:
        click.echo(wrap.flush(), color=True)
    return True


def wait(events: Iterable[Event]) -> bool:
    """Take the events without printing them, for a document at the end. False if Ctrl-C ended it."""
    try:
        with working("answering"):
            for _ in events:
                pass
    except KeyboardInterrupt:
        return False
    return True


def _events(llm: LLM, request: Request) -> Iterator[Event]:
    """Yield the events of a request; say in a terminal how far its prompt is read, if that takes more than a second."""
    seq, start_s = request.runs[0].seq, time.perf_counter()
    is_shown = False
    try:
        while sys.stderr.isatty() and not (request.unread or request.is_finished):
            llm.loop.step(request)
            read, lasted_s = llm.engine.num_read(seq) or 0, time.perf_counter() - start_s
            if lasted_s > SILENT_S and seq.num_reused < read < seq.num_prompt:
                left_s = lasted_s * (seq.num_prompt - read) / (read - seq.num_reused)
                text = (
                    f"reading the prompt, {read:,} of {seq.num_prompt:,}, {_minutes(left_s)} left"
                )
                redraw(text)
                is_shown = True
        if is_shown:
            redraw("")
        yield from request
    finally:
        request.close()


def _minutes(seconds: float) -> str:
    """Write a time as people read it: 0:14, 12:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@dataclass(slots=True)
class Measured:
    """The results of one run, under the names every forerun document uses."""

    tokens: int
    seconds: float
    stats: SpecStats
    draft_s: float
    verify_s: float
    ttft_s: float | None
    num_cached_tokens: int = 0
    """Prompt tokens that were not read again."""
    num_prompt: int = 0
    """Tokens of the prompt."""

    @property
    def tok_s(self) -> float:
        """Divide generated tokens by seconds; the time before the first one is left out where it is known."""
        if self.ttft_s is None:
            return self.tokens / self.seconds if self.seconds else 0.0
        decode_s = self.seconds - self.ttft_s
        return max(self.tokens - 1, 0) / decode_s if decode_s > 0 else 0.0

    def document(self, llm: LLM) -> dict[str, object]:
        """Convert the results to JSON values, after those of `environment`."""
        stats = self.stats
        return environment(llm.config.model, llm.drafter_spec.name, llm.model.num_threads) | {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 4),
            "tok_s": round(self.tok_s, 2),
            "tau": round(stats.tau, 3),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "acceptance_by_depth": [round(rate, 4) for rate in stats.acceptance_by_depth],
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "rejected": stats.rejected,
            "draft_ms": round(self.draft_s * 1e3, 2),
            "verify_ms": round(self.verify_s * 1e3, 2),
            "num_cached_tokens": self.num_cached_tokens,
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1e3, 2),
        }

    def line(self, drafter: str) -> str:
        """Write the results in one line for people."""
        text = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        text += f", {self.tok_s:.1f} tok/s" if self.tokens > 1 else ""
        if self.ttft_s is not None:
            text += f"; first token after {self.ttft_s:.2f} s"
            num_read = self.num_prompt - self.num_cached_tokens
            text += f", prompt {num_read / self.ttft_s:,.0f} tokens/s" if num_read > 1 else ""
        if self.stats.drafted:
            text += (
                f"; {drafter}: {tokens_per_pass(self.stats.tau)}, "
                f"accepted {self.stats.accepted} of {self.stats.drafted} drafted "
                f"({self.stats.acceptance_rate:.0%})"
            )
        return text


def tokens_per_pass(tau: float) -> str:
    """Write tau in words, for its first place in an output."""
    return f"{tau:.2f} tokens per pass (tau)"


def answer(
    llm: LLM, prompt: Prompt, params: SamplingParams, *, shown: bool = True
) -> tuple[CompletionOutput, Measured, bool]:
    """Show the answer to a prompt as it comes: the completion, its results, and False if Ctrl-C ended it."""
    timers, start_s = llm.engine.timers, time.perf_counter()
    draft_s, verify_s = timers.draft_s, timers.verify_s
    request = llm.submit(prompt, params)
    events = _events(llm, request)
    is_complete = show(events) if shown else wait(events)
    output, first_s = request.output(), request.runs[0].first_token_s
    completion = output.outputs[0]
    measured = Measured(
        tokens=len(completion.token_ids),
        seconds=time.perf_counter() - start_s,
        stats=completion.stats,
        draft_s=timers.draft_s - draft_s,
        verify_s=timers.verify_s - verify_s,
        ttft_s=None if first_s is None else first_s - start_s,
        num_cached_tokens=output.num_cached_tokens,
        num_prompt=len(output.prompt_token_ids),
    )
    return completion, measured, is_complete


def environment(model: str, drafter: str, threads: int) -> dict[str, object]:
    """Collect the fields that every JSON document has besides its results."""
    return {
        "model": model,
        "drafter": drafter,
        "threads": threads,
        "peak_rss_mb": round(peak_nbytes() / 2**20, 1),
    }


def print_json(document: Mapping[str, object]) -> None:
    """Print a document on one line."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, ensure_ascii=not is_unicode), flush=True)
