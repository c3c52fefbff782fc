"""Paths that users write."""

from __future__ import annotations

from pathlib import Path

NO_HOME = Path("/proc/no-home")
"""The home of a user without one: nothing is there, and no user, not even root, can create anything there."""


def expanded(path: str | Path) -> Path:
    """Return a path with `~` replaced by the user's home.

    A user id without an entry in the system's list of users, and without HOME, has none: `NO_HOME` stands for it.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return NO_HOME.joinpath(*Path(path).parts[1:])
