"""Reading what a command printed."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

FEW = Path(__file__).parents[1] / "few.jsonl"
"""Short prompts of two kinds, whose answers repeat them: those that ship take most of a command's time to read."""


def the_json(out: str) -> dict:
    """The document, beside which nothing was printed."""
    return json.loads(out)


def check_help(shell, commands, columns: int) -> None:
    """The help of each command fits the terminal, and nothing of it is cut."""
    for command in commands:
        code, out, _ = shell(f"forerun {command} --help", columns=columns)
        assert code == 0, command
        assert out.startswith("Usage: forerun")
        assert max(map(len, out.splitlines())) <= columns, command
        assert "…" not in out
        assert "--help" in out


def check_table(shell, line: str) -> str:
    """What a command prints fits 60 columns, and tau is introduced; what it printed."""
    code, out, _ = shell(line, columns=60)
    assert code == 0
    assert max(len(text.rstrip()) for text in out.splitlines()) <= 60
    assert "…" not in out
    if re.search(r"\btau\b", out):
        assert "tokens per pass" in " ".join(out.split())
    return out


def one_line_of_mistake(shell, line: str) -> str:
    """What a command says of a mistake, which is one line on stderr."""
    code, out, err = shell(line)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def assert_private(folder: Path, *but: str) -> None:
    """All that lies below a folder is its owner's alone; `but` names what may be read by others, with what is below.

    Pictures have no words.
    """
    found = [path for path in folder.rglob("*") if not {*path.relative_to(folder).parts} & {*but}]
    found = [path for path in found if path.suffix not in (".png", ".svg")]
    assert found, f"nothing lies in {folder}"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    wrong = {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}
    assert not wrong, wrong
