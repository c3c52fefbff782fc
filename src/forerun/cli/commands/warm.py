"""`forerun warm`: an agent's instructions and tools are read ahead, so that its first question does not wait."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forerun.cli import options as opt
from forerun.cli.served import served
from forerun.core.config import ALL, EngineConfig
from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from forerun.server.client import Remote


@opt.command()
@opt.engine(prompt_cache=ALL)
@opt.argument(
    "what", metavar="CLIENT|FILE", help="A client that this machine's server has seen, or JSON."
)
def command(config: EngineConfig, what: str) -> None:
    """Read instructions and tools into the prompt cache before the first request. Ctrl-C loses nothing.

    CLIENT is who asked `forerun serve` here, such as claude or codex: what it sent last before a user's words. FILE is
    a list of messages, or the body of a request to /v1/chat/completions. It runs at the lowest priority.
    """
    from forerun.server import instructions

    if config.prompt_cache is None:
        raise ConfigError("warm fills the prompt cache: leave out --prompt-cache none")
    body = instructions.read(what)
    flags = [config.model, *opt.given_flags(), "--port", "0", "-np", "1"]
    with served(flags, is_idle=True) as remote:
        read_ahead(remote, body, what)


def read_ahead(remote: Remote, body: Mapping[str, object], what: str) -> None:
    """Have a server read a request's instructions and tools, and say how many tokens there were."""
    from forerun.cli import console

    start_s, timings = time.monotonic(), dict[str, Any]()
    asked = {**body, "max_tokens": 1, "return_progress": True, "timings_per_token": True}
    with console.working("reading") as say, remote.stream("/chat/completions", asked) as stream:
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
