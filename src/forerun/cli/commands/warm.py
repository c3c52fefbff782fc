"""`forerun warm`: an agent's instructions and tools are read ahead, so that its first question does not wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forerun.cli import options as opt
from forerun.core.config import ALL, EngineConfig
from forerun.core.errors import ConfigError, ForerunError
from forerun.system import background

if TYPE_CHECKING:
    from forerun.server.client import Remote

END_S = 30.0
"""For a server to write what it has read."""
_ADDRESS = re.compile(r"listening on (http://\S+)")
_ERROR = re.compile(r"error: (.*)")


@opt.command()
@opt.engine(prompt_cache=ALL)
@opt.argument(
    "what", metavar="CLIENT|FILE", help="A client that this machine's server has seen, or JSON."
)
def command(config: EngineConfig, what: str) -> None:
    """Read instructions and tools into the prompt cache before the first request. Ctrl-C loses nothing.

    CLIENT is who asked `forerun serve` here, such as claude-cli: what it sent last before a user's words. FILE is
    a list of messages, or the body of a request to /v1/chat/completions. It runs at the lowest priority.
    """
    from forerun.cli import console
    from forerun.server import instructions

    if config.prompt_cache is None:
        raise ConfigError("warm fills the prompt cache: leave out --prompt-cache none")
    body = instructions.read(what)
    with _served([config.model, *opt.given_flags()]) as remote, console.working("reading") as say:
        start_s, timings = time.monotonic(), dict[str, Any]()
        asked = {**body, "max_tokens": 1, "return_progress": True, "timings_per_token": True}
        with remote.stream("/chat/completions", asked) as stream:
            for chunk in stream:
                timings.update(chunk.timings)
                say(_left(chunk.progress, time.monotonic() - start_s))
    found = f"{timings['prompt_n']} tokens were computed, {timings['cache_n']} were cached"
    console.note(f"{what}: {found}", dim=True)


def _left(progress: Mapping[str, Any], seconds: float) -> str:
    """Write how far it is, and how long the rest takes."""
    if not progress:
        return "nearly done"
    done, total = progress["processed"], progress["total"]
    num_new = done - progress["cache"]
    text = f"{done} of {total} tokens"
    if num_new <= 0:
        return text
    return f"{text}, {timedelta(seconds=round(seconds / num_new * (total - done)))} left"


@contextmanager
def _served(flags: list[str]) -> Iterator[Remote]:
    """Run a server of one model at idle priority, and end it when it has written all. Raises ForerunError."""
    from forerun.server.client import Remote

    command = [sys.executable, "-m", "forerun", "serve", *flags, "--port", "0", "-np", "1"]
    command += (
        [] if any(flag.startswith("--prompt-cache") for flag in flags) else ["--prompt-cache", ALL]
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, server.pid, 19)
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
            background.watch("forerun-warm", server.stderr.read)
            yield Remote.of(address)
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(END_S)
            server.kill()
