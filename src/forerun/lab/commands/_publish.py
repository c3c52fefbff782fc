"""How every command of the laboratory ends: its document written, drawn, printed or shown, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer


def publish(
    document: Mapping[str, Any],
    show: Callable[[], object],
    *,
    as_json: bool,
    out: Path | None = None,
    draw: Callable[[Path, str], object] | None = None,
    fails: bool = False,
    why: str = "",
) -> None:
    """Write a document as JSON to `out`, `draw` it beside (folder, stem), then print it or `show` its tables.

    Exits 1 if it `fails`, and says `why` in red.
    """
    from forerun.cli import console

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if draw is not None:
            draw(out.parent, out.stem)
    if as_json:
        console.print_json(document)
    else:
        show()
    if fails:
        if why:
            console.stderr().print(why, style="bold red")
        raise typer.Exit(1)
