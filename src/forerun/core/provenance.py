"""What results depend on: machine, versions and commit, beside the model and the options of a run."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

from forerun.core import device


def provenance(model: str, quant: str, **options: object) -> dict[str, object]:
    """The origin of a run's results; `options` are JSON values."""
    machine = device.report()
    return {"date": now(), "commit": commit(), "model": model, "quant": quant, **machine, **options}


def now() -> str:
    """The time to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the source tree this runs from, `-dirty` if it was changed; None outside of git."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # installed: a repository around it would be someone else's
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
