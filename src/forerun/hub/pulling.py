"""A download as a process of its own: it writes lines of JSON that say how far it is, and ends with its input.

So the caller can end it, and nothing of the hub's client is in a process that answers requests.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from forerun.core.errors import LoadError
from forerun.hub import hugging_face, names
from forerun.hub.hugging_face import HubName
from forerun.system import background

EACH_S = 0.25


def command(name: str) -> list[str]:
    """Return the command that pulls a model; its input must be a pipe that stays open."""
    return [sys.executable, "-P", "-m", __name__, name]


def environment() -> dict[str, str]:
    """Return the command's environment."""
    root = str(Path(__file__).parents[2])  # -P: nothing is imported from the working directory
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def main() -> None:
    """Pull a model, as Ollama tells it: a line for each file that grows, then what came of it."""
    background.watch("forerun-pull-input", _end_with_input)
    name = sys.argv[1]
    try:
        found = HubName.parse(name)
        _say(status="pulling manifest")
        if found is not None:
            _pull_files(name, found)
        names.pull(name)
    except LoadError as error:
        _say(error=str(error))
        return
    _say(status="success")


def _pull_files(name: str, found: HubName) -> None:
    """Fetch files of the hub, and say every quarter of a second how far they are. Raises LoadError."""
    files = hugging_face.files_of(found)
    failures: list[LoadError] = []

    def pull() -> None:
        try:
            names.pull(name)
        except LoadError as error:
            failures.append(error)

    thread = background.watch("forerun-pull", pull)
    said: dict[str, int] = {}
    while thread.is_alive():
        thread.join(EACH_S)
        for file in files:
            here = file.nbytes if not thread.is_alive() else hugging_face.blob(found, file)
            if here != said.get(file.name, 0) and not failures:
                said[file.name] = here
                status = f"pulling {file.digest[:12]}"
                digest = f"sha256:{file.digest}"
                _say(status=status, digest=digest, total=file.nbytes, completed=here)
    if failures:
        raise failures[0]
    _say(status="verifying sha256 digest")
    _say(status="writing manifest")


def _say(**document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
