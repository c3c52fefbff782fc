"""A server of this machine that a command runs for a while."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from forerun.core.config import ALL
from forerun.core.errors import ForerunError
from forerun.system import background

if TYPE_CHECKING:
    from forerun.server.client import Remote

END_S = 30.0
"""For a server to write what it has read."""
_ADDRESS = re.compile(r"listening on (http://\S+)")
_ERROR = re.compile(r"error: (.*)")


@contextmanager
def served(flags: list[str], *, is_idle: bool = False) -> Iterator[Remote]:
    """Run `forerun serve`, and end it when it has written all; `is_idle`: at the lowest priority.

    Ctrl-C is its starter's alone. Raises ForerunError.
    """
    from forerun.server.client import Remote

    command = [sys.executable, "-m", "forerun", "serve", *flags]
    command += (
        [] if any(flag.startswith("--prompt-cache") for flag in flags) else ["--prompt-cache", ALL]
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stderr=pipe, text=True, start_new_session=True) as server:
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, server.pid, 19 if is_idle else 0)
        assert server.stderr is not None
        try:
            address = said = ""
            for line in server.stderr:
                said = line.strip() or said
                if found := _ADDRESS.search(line):
                    address = found[1]
                if line.startswith("ready"):
                    break
            else:
                error = _ERROR.search(said)
                raise ForerunError(error[1] if error else said)
            background.watch("forerun-served", server.stderr.read)
            yield Remote.of(address)
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(END_S)
            server.kill()
