"""How a command of the laboratory ends: a document written, printed as JSON or shown as tables; its exit code.

A row of a table is a mapping or an object; a column is a key, a key with a format for numbers, or a function of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from forerun.core.errors import ForerunError

NOTHING = "–"
Column = str | tuple[str, int | str] | Callable[[Any], object]
Columns = Mapping[str, Column]


def publish(
    document: Mapping[str, Any],
    show: Callable[[], object],
    *,
    as_json: bool,
    out: Path | None = None,
    fails: bool = False,
    why: str = "",
) -> None:
    """Write a document as JSON to `out`, then print it or `show` its tables.

    Exits 1 if it `fails`, and says `why` in red.
    """
    from forerun.cli import console

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(document)
    else:
        show()
    if fails:
        if why:
            console.note(why, fg="red", bold=True)
        raise click.exceptions.Exit(1)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in an error what could not be written. Raises ForerunError."""
    try:
        yield
    except OSError as error:
        raise ForerunError(f"{path} cannot be written: {error}") from error


def show_table(rows: Iterable[Any], columns: Columns, *, num_left: int = 1) -> None:
    """Print a line a row, all but the first columns aligned to the right."""
    from forerun.cli import tables

    tables.report().print(tables.table([*columns], lines(rows, columns), num_left=num_left))


def lines(rows: Iterable[Any], columns: Columns) -> list[list[str]]:
    """Return the cells of each row as text; a dash where a number is missing."""
    return [[_cell(row, column) for column in columns.values()] for row in rows]


def _cell(row: Any, column: Column) -> str:
    if isinstance(column, str):
        return str(_value(row, column))
    if isinstance(column, tuple):
        return number(_value(row, column[0]), column[1])
    return str(column(row))


def _value(row: Any, key: str) -> object:
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key)


def number(value: object, spec: int | str) -> str:
    """Format a number with so many digits, or as `.0%` says; a dash where there is none."""
    spec = f".{spec}f" if isinstance(spec, int) else spec
    return format(value, spec) if isinstance(value, int | float) else NOTHING


def markdown_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, num_left: int = 1
) -> str:
    """Make a Markdown table, all but the first columns to the right."""
    rule = ["---"] * num_left + ["---:"] * (len(head) - num_left)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
