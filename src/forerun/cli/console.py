"""What people see: text as it streams, drafted tokens tinted, one line of results, progress on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from forerun.cli.progress import PlainProgress
from forerun.core.device import peak_nbytes
from forerun.core.repetition import is_much, num_repeated
from forerun.engine.stats import SpecStats

if TYPE_CHECKING:
    from forerun.core.params import SamplingParams
    from forerun.core.types import Event
    from forerun.engine.outputs import CompletionOutput
    from forerun.llm import LLM, Prompt

T = TypeVar("T")

DRAFTED = "black on pale_green3"
WHOLE_LINES = 200
"""Columns of a table that goes to a file or a pipe."""
TAU = "tau: tokens per pass of the model"
"""Footnote of a table with a column `tau`."""
REPEATS = "the answer repeats itself, {} tokens of it, which drafts well: its speed says little about others"


class _Console(Console):
    """Leaves a closed pipe to `main`, which ends every command alike."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout() -> Console:
    """Make a console for the answer: neither wrapped nor read as markup, with colours where the terminal has them."""
    return _Console(highlight=False, soft_wrap=True, markup=False)


def report() -> Console:
    """Make a console for tables and sentences on stdout, as wide as the terminal; a file or a pipe gets whole lines."""
    return _whole_lines(_Console(highlight=False, markup=False))


def stderr() -> Console:
    """Make a console for everything that is not the answer."""
    return _whole_lines(_Console(stderr=True, highlight=False, markup=False))


def _whole_lines(console: Console) -> Console:
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WHOLE_LINES
    return console


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner on stderr, in a terminal only, while something takes its time."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


@contextmanager
def log_later() -> Iterator[None]:
    """Hold what is logged inside back until the end: an answer is printed in one piece."""
    logger, held = logging.getLogger("forerun"), BufferingHandler(sys.maxsize)
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [held], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        for record in held.buffer:
            logger.handle(record)


@log_later()
def show(events: Iterable[Event]) -> bool:
    """Print text as it becomes final, drafted tokens tinted. False if Ctrl-C ended it; what was printed stands."""
    console = stdout()
    try:
        for event in events:
            for piece in event.pieces:
                style = DRAFTED if piece.from_draft else ""
                console.print(Text(piece.text, style=style), end="")
            console.file.flush()
    except KeyboardInterrupt:
        return False
    finally:
        console.print()
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
    num_repeated: int = 0
    """Tokens that say again what stood in the answer before (`core.repetition`)."""

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
            "num_repeated": self.num_repeated,
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1e3, 2),
        }

    def line(self, drafter: str) -> str:
        """Write the results in one line for people."""
        text = f"{self.tokens} tokens, {self.tok_s:.1f} tok/s"
        if self.stats.drafted:
            text += (
                f"; {drafter}: {tokens_per_pass(self.stats.tau)}, "
                f"accepted {self.stats.accepted} of {self.stats.drafted} drafted "
                f"({self.stats.acceptance_rate:.0%})"
            )
        if is_much(self.num_repeated, self.tokens):
            text += f"; {REPEATS.format(self.num_repeated)}"
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
    is_whole = show(request.events()) if shown else wait(request.events())
    output = request.output()
    completion = output.outputs[0]
    measured = Measured(
        tokens=len(completion.token_ids),
        seconds=time.perf_counter() - start_s,
        stats=completion.stats,
        draft_s=timers.draft_s - draft_s,
        verify_s=timers.verify_s - verify_s,
        ttft_s=completion.ttft_s,
        num_cached_tokens=output.num_cached_tokens,
        num_repeated=num_repeated(completion.token_ids),
    )
    return completion, measured, is_whole


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


def track(steps: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the steps and show progress on stderr: a bar with the time left, in a pipe a line every 10 s."""
    if total is None and isinstance(steps, Sized):
        total = len(steps)
    with counter(what, total) as show:
        for done, step in enumerate(steps, 1):
            yield step
            show(done)


@contextmanager
def counter(what: str, total: int | None) -> Iterator[Callable[[float], None]]:
    """Show progress on stderr as `track` does; the function that is yielded sets how much is done."""
    console = stderr()
    if not console.is_terminal:
        yield PlainProgress(what, total, console.file).update
        return
    with Progress(*Progress.get_default_columns(), console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def table(columns: Sequence[str], lines: Iterable[Sequence[object]], *, num_left: int = 1) -> Table:
    """Make a plain table, all but the first columns aligned to the right. No header if the columns have no names."""
    result = Table(box=None, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        result.add_column(column, justify="left" if i < num_left else "right", overflow="fold")
    for line in lines:
        result.add_row(*(each if isinstance(each, Text) else str(each) for each in line))
    return result
