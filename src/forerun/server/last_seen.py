"""The instructions and tools that each client sent last, for `forerun warm`: what stands before a user's words.

They lie in `clients/NAME.json` in forerun's folder, for its owner alone, as bodies of `/v1/chat/completions`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.core import files
from forerun.core.errors import LoadError, one_line, short_repr, unknown
from forerun.hub.names import cache_root
from forerun.text.prompt import TOLD_BY

LEAST = 512
"""Tokens of instructions that are worth keeping."""
FIELDS = (
    *("tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "reasoning"),
    *("thinking", "enable_thinking", "thinking_budget"),
)
"""Fields that the template reads, besides messages."""
SAID = {"role": "user", "content": "..."}
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)
_log = logging.getLogger(__name__)


class LastSeen:
    """Keeps them; a client that sends the same again costs nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

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
        text = json.dumps({"messages": [*messages, SAID], **fields})
        if name is None or self._kept.get(name) == text:
            return
        self._kept[name] = text
        try:
            files.make_folder(folder())
            files.replace(folder() / f"{name}.json", text.encode())
        except OSError as error:
            _log.warning("the instructions of %s are not kept: %s", name, one_line(str(error)))


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


def read(given: str) -> dict[str, Any]:
    """Read the body of a file, or what a client of that name sent last. Raises LoadError.

    A file holds such a body, or its messages alone; without a user's message one is added.
    """
    path = Path(given).expanduser()
    if not path.is_file():
        known = sorted(each.stem for each in folder().glob("*.json"))
        if given not in known:
            raise LoadError(
                f"{unknown('client', given, known)}; or give a file of messages"
                if known
                else f"there is no file {short_repr(given)}, and no client was seen: start `forerun serve` and "
                "let one ask"
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
