"""Record `forerun demo` as docs/demo.svg: `python -m dev.demo_svg`. The figures in it are of the machine it ran on."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from forerun.cli import _console, demo

TARGET = Path(__file__).parent.parent / "docs" / "demo.svg"


def main() -> None:
    """Run the demo with a recording console in place of the terminal."""
    console = Console(
        record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False
    )
    _console.stdout = lambda: console
    demo.command(as_json=False)
    console.save_svg(str(TARGET), title="forerun demo")


if __name__ == "__main__":
    main()
