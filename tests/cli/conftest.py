"""What the tests of all commands share: a way to run one."""

from __future__ import annotations

import sys

import pytest

from forerun.cli.main import main


@pytest.fixture
def forerun(monkeypatch, capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forerun", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
        printed = capsys.readouterr()
        return int(code or 0), printed.out, printed.err

    return run
