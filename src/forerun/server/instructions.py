"""The instructions and tools that each client sent last, for `forerun warm`: what stands before a user's words.

They lie in `clients/NAME.json` in forerun's folder, for its owner alone, as bodies of `/v1/chat/completions`. A client
chooses its name and what it sends, so both are bounded: the `NAMES` that came last, `MAX_NBYTES` each.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.core.errors import LoadError, one_line, short_repr, unknown
from forerun.core.paths import expanded
from forerun.hub.names import cache_root
from forerun.system import files
from forerun.text.prompt import TOLD_BY

LEAST = 512
"""Tokens of instructions that are worth keeping."""
NAMES, MAX_NBYTES = 16, 256_000
"""Clients that are kept, and bytes of each: what is larger is not written."""
FIELDS = (
    *("reasoning_effort", "reasoning"),
    *("thinking", "enable_thinking", "thinking_budget"),
)
"""Fields that the template reads, besides messages, tools and its own variables."""
SAID = {"role": "user", "content": "..."}
ALSO: Mapping[str, tuple[str, ...]] = {
    "claude": ("claude-cli",),
    "codex": ("codex-tui", "codex_cli_rs", "codex_exec"),
    "cline": ("ai-sdk",),
    "qwen": ("qwencode", "qwen-code"),
    "continue": ("continue-cli", "openai"),
}
"""What people call clients, and how those call themselves."""
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)
_log = logging.getLogger(__name__)


class LastSeen:
    """Writes them; a client that sends the same again costs nothing. Only digests stay in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def note(
        self, agent: str, said: Sequence[Mapping[str, Any]], fields: Mapping[str, object]
    ) -> None:
        """Keep what a client, by its `User-Agent`, has sent before the first words of a user: messages, `FIELDS`."""
        name = client_of(agent)
        messages = []
        for message in said:
            if message["role"] not in TOLD_BY:
                break
            messages.append(message)
        body = json.dumps({"messages": [*messages, SAID], **fields}).encode()
        digest = hashlib.blake2b(body, digest_size=16).digest()
        if name is None or len(body) > MAX_NBYTES:
            return
        with self._lock:
            if self._kept.pop(name, None) != digest or not (folder() / f"{name}.json").exists():
                self._write(name, body)
            self._kept[name] = digest  # the last one is the newest
            while len(self._kept) > NAMES:
                del self._kept[next(iter(self._kept))]

    def _write(self, name: str, body: bytes) -> None:
        try:
            files.replace(folder() / f"{name}.json", body)
            clear(but=NAMES)
        except OSError as error:
            _log.warning("cannot save the instructions of %s: %s", name, one_line(str(error)))


def clear(but: int = 0) -> int:
    """Delete what clients have sent, but for the newest of them; return the bytes that were freed. Raises OSError."""
    found = sorted(files.regular(folder().glob("*.json")), key=lambda each: -each[1].st_mtime_ns)
    return files.delete(path for path, _ in found[but:])


def folder() -> Path:
    """Return where they lie; it may not exist yet."""
    return cache_root() / "clients"


def client_of(agent: str) -> str | None:
    """Name a client by the product that its `User-Agent` begins with.

    >>> client_of("claude-cli/2.1.197 (external, cli)")
    'claude-cli'
    """
    found = _NAME.match(agent.strip())
    return found[0].lower().strip(".") or None if found else None


def newest(given: str) -> str | None:
    """Return how the client of a name that people say called itself when it sent something last; None if never."""
    names = [given, *ALSO.get(given, ())]
    found = files.regular(folder() / f"{name}.json" for name in names)
    newest = max(found, key=lambda each: each[1].st_mtime_ns, default=None)
    return None if newest is None else newest[0].stem


def read(given: str) -> dict[str, Any]:
    """Read the body of a file, or what a client of that name sent last. Raises LoadError.

    A file holds such a body, or its messages alone; without a user's message one is added.
    """
    path = expanded(given)
    if not path.is_file():
        known = sorted(each.stem for each in folder().glob("*.json"))
        given = newest(given) or given
        if given not in known:
            raise LoadError(
                f"{unknown('client', given, known, ALSO)}; or give a file of messages"
                if known
                else f"there is no file {short_repr(given)}, and no client has sent a request yet: start "
                "`forerun serve` and send one"
            )
        path = folder() / f"{given}.json"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read as JSON: {one_line(str(error))}") from error
    body = {"messages": body} if isinstance(body, list) else body
    messages = body.get("messages") if isinstance(body, Mapping) else None
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise LoadError(f"{path} must hold a list of messages, or an object with `messages`")
    if all(one.get("role") in TOLD_BY for one in messages):
        messages = [*messages, SAID]
    return {**body, "messages": messages}
