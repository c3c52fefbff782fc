"""`python -m forerun.bench.peers FOLDER` gives every peer an environment of its own, with the versions it pins."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from forerun.bench.peers.base import KIND
from forerun.core import registry


def install(folder: Path) -> None:
    """Create what is missing; an environment that is complete is left as it is."""
    for name in registry.names(KIND):
        module = registry.load(KIND, name)
        home = folder / module.NAME
        stamp = home / "requirements.txt"
        wanted = "\n".join(module.REQUIREMENTS) + "\n"
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            continue
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *module.REQUIREMENTS], check=True)
        stamp.write_text(wanted, encoding="utf-8")  # last: an interrupted installation is repeated


if __name__ == "__main__":
    install(Path(sys.argv[1]))
