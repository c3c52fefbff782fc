"""Tables, sentences and progress as rich draws them; in a pipe progress is a plain line now and then."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import click
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

WHOLE_LINES = 200
"""Columns of a table that goes to a file or a pipe."""
TAU = "tau: tokens per pass of the model"
"""Footnote of a table with a column `tau`."""
GAP = 2
"""Columns of the terminal between two of a table."""
EVERY_S = 10.0
"""Seconds between two lines of progress, and before the first: quick work prints nothing."""


class _Console(Console):
    """Leaves a closed pipe to `main`, which ends every command alike."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def report(*, stderr: bool = False) -> Console:
    """Make a console for tables and sentences, as wide as the terminal; a file or a pipe gets whole lines."""
    console = _Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WHOLE_LINES
    return console


def table(columns: Sequence[str], lines: Iterable[Sequence[object]], *, num_left: int = 1) -> Table:
    """Make a plain table, all but the first columns aligned to the right. No header if the columns have no names.

    Where the terminal is too narrow the widest columns fold, the words of the headings stay whole.
    """
    result = Table(box=None, pad_edge=False, show_header=any(columns))
    rows = [[each if isinstance(each, Text) else str(each) for each in line] for line in lines]
    widths = _widths(columns, rows, report().width)
    for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
        justify: JustifyMethod = "left" if i < num_left else "right"
        result.add_column(column, justify=justify, overflow="fold", width=width)
    for row in rows:
        result.add_row(*row)
    return result


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], room: int) -> list[int]:
    """Return the width of each column: as its cells want it, less of the widest where there is no room."""
    cells = [[column, *(str(row[i]) for row in rows)] for i, column in enumerate(columns)]
    widths = [max(cell_len(line) for cell in each for line in cell.split("\n")) for each in cells]
    least = [max(map(len, column.split()), default=1) for column in columns]
    while sum(widths) + GAP * (len(widths) - 1) > room:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i]) * widths[i])
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return widths


def track(steps: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the steps and show progress on stderr: a bar with the time left, in a pipe a line every 10 s."""
    if total is None and isinstance(steps, Sized):
        total = len(steps)
    with counter(what, total) as show:
        for done, step in enumerate(steps, 1):
            yield step
            show(done)


@contextmanager
def counter(
    what: str, total: int | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[float], None]]:
    """Show progress on stderr as `track` does; the function that is yielded sets how much is done."""
    console = report(stderr=True)
    columns, is_bar, last_s = Progress.get_default_columns(), console.is_terminal, clock()
    with Progress(*columns, console=console, disable=not is_bar, get_time=clock) as bar:
        task = bar.add_task(what, total=total)

        def show(done: float) -> None:
            nonlocal last_s
            bar.update(task, completed=done)
            if is_bar or clock() - last_s < EVERY_S:
                return
            last_s, left_s = clock(), bar.tasks[0].time_remaining
            text = f"{what}: {done:.0f}" + (f" of {total}" if total else "")
            text += "" if left_s is None else f", {timedelta(seconds=max(0, left_s))} left"
            click.echo(text, err=True)

        yield show
