"""Record `forerun demo` as docs/demo.svg: `python -m dev.demo_svg`. Its figures are of the machine it ran on."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from forerun.cli import _console, demo
from forerun.core.types import Event

TARGET = Path(__file__).parent.parent / "docs" / "demo.svg"
WIDTH = 100


def main() -> None:
    """Run the demo with a recording console in place of the terminal."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
    )

    def show(events: Iterable[Event]) -> bool:
        """What `_console.show` prints, in one piece, so that the picture can wrap it."""
        pieces = [piece for event in events for piece in event.pieces]
        style = _console.DRAFTED
        console.print(Text.assemble(*((p.text, style if p.from_draft else "") for p in pieces)))
        return True

    _console.stdout = _console.report = lambda: console
    _console.show = show
    demo.command(as_json=False)
    svg = console.export_svg(title="forerun demo")
    # Fonts are not fetched from elsewhere: the reader's monospace one will do.
    TARGET.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
