"""`python -m forerun.lab.bench.peers FOLDER [NAME...]` gives peers, or all, environments with the versions they pin."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from forerun.lab.bench.peers.base import STAMP, adapter, adapters


def install(folder: Path, names: Sequence[str]) -> list[str]:
    """Create missing environments, with messages on stderr. Returns the names that failed."""
    failed = []
    for name in names:
        home = folder / name
        stamp = home / STAMP
        requirements = adapter(name).REQUIREMENTS
        wanted = "\n".join(requirements) + "\n"
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            continue
        sys.stderr.write(f"installing {name}: {', '.join(requirements)}\n")
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if subprocess.run([*pip, *requirements], check=False).returncode == 0:
            # Last: an interrupted installation is repeated.
            stamp.write_text(wanted, encoding="utf-8")
        else:
            failed.append(name)
    return failed


if __name__ == "__main__":
    if failed := install(Path(sys.argv[1]), sys.argv[2:] or list(adapters())):
        sys.exit(f"could not install {', '.join(failed)}; the others are complete")
