"""Markdown within the width of a page, for the scripts that write documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 120
"""Characters of a line, at most."""


def wrapped(text: str, indent: str = "") -> str:
    """Break a paragraph between words; lines after the first begin with `indent`."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def item(name: str, text: str, brackets: str = "") -> str:
    """Describe one thing as an item of a list."""
    head = f"- {name} ({brackets})" if brackets else f"- {name}"
    return wrapped(f"{head}: {text}" if text else head, "  ")


def codes(values: Iterable[object]) -> str:
    """Show values as code, between commas."""
    return ", ".join(f"`{value}`" for value in values)
