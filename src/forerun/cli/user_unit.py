"""The server as a service of a user's own session, under systemd: its unit, and how it is put in place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forerun.core.errors import ConfigError, one_line, reason
from forerun.core.paths import expanded
from forerun.system import files

NAME = "forerun.service"
MARK = "# Written by forerun service install."
KEPT = ("FORERUN_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")
"""Variables that say where models lie: the session may not have them."""


def path() -> Path:
    """Return the unit's place; it may not exist yet."""
    folder = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return folder / "systemd" / "user" / NAME


def unit(words: Sequence[str]) -> str:
    """Write the unit of `forerun serve` with these words."""
    command = [sys.executable, "-m", "forerun", "serve", *words]
    kept = [f"{name}={os.environ[name]}" for name in KEPT if os.environ.get(name)]
    lines = [
        MARK,
        "[Unit]",
        "Description=forerun, a server of language models",
        "[Service]",
        f"ExecStart={' '.join(map(quoted, command))}",
        *(f"Environment={quoted(one)}" for one in kept),
        "Restart=on-failure",
        "NoNewPrivileges=yes",
        "TimeoutStopSec=45",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def quoted(word: str) -> str:
    """Write a word so that systemd reads it as it is. Raises ConfigError for one of several lines.

    >>> print(quoted("--port"), quoted("a 100% $HOME"))
    --port "a 100%% $$HOME"
    """
    if not word.isprintable():
        raise ConfigError(f"{word!r} cannot stand in a unit: it must be printable")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w.:/@=,+-]+", text) else f'"{text}"'


def install(words: Sequence[str]) -> Path:
    """Write the unit, and have systemd start it now and with every session. Raises ConfigError."""
    _check_system()
    place = path()
    try:
        before = place.read_text("utf-8") if place.exists() else MARK
        if not before.startswith(MARK):
            raise ConfigError(f"{place} was not written by forerun: save it elsewhere first")
        place.parent.mkdir(parents=True, exist_ok=True)
        files.replace(place, unit(words).encode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place} cannot be written: {reason(error)}") from error
    _systemctl("daemon-reload")
    _systemctl("enable", NAME)
    _systemctl("restart", NAME)
    return place


def remove() -> Path:
    """Stop the service and delete its unit. Raises ConfigError where there is none of ours."""
    _check_system()
    place = path()
    try:
        text = place.read_text("utf-8") if place.exists() else ""
        if not text.startswith(MARK):
            raise ConfigError(
                f"there is no service to remove: forerun service install makes {place}"
            )
        _systemctl("disable", "--now", NAME)
        place.unlink()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place} cannot be removed: {reason(error)}") from error
    _systemctl("daemon-reload")
    return place


def _check_system() -> None:
    if not sys.platform.startswith("linux") or shutil.which("systemctl") is None:
        raise ConfigError(
            "services are systemd's, on Linux, and there is no systemctl here: "
            "forerun service install --print shows the unit"
        )


def _systemctl(*words: str) -> None:
    done = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(
            f"systemctl --user {' '.join(words)}: {one_line(done.stderr or 'it failed')}"
        )
