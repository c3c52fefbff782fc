"""What has been said in `forerun chat`: kept, shown, saved and loaded, whoever answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forerun.core.errors import ConfigError

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that did not end by itself: what was asked, and its tokens after the prompt's."""

    asked: Sequence[Message]
    token_ids: Sequence[int]
    text: str


@dataclass(slots=True, kw_only=True)
class Messages:
    """The messages of a conversation. Raises ForerunError for what cannot be done; they are then as before."""

    messages: list[Message] = field(default_factory=list)
    cut: Cut | None = None
    """The last answer, if it can go on."""
    file: Path | None = None
    """Where it was saved or loaded, which saving again may overwrite."""

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RequestError if the model cannot take these messages and a question."""

    def start(self, system: str | None) -> None:
        """Check that the model can talk, and with that system message. Raises RequestError."""
        opening = [{"role": "system", "content": system}] if system else []
        self._replace(opening)

    def clear(self) -> str:
        """Forget all but the system message."""
        self.messages = self.messages[:1] if self._has_system else []
        self.cut = None
        return "the conversation is forgotten"

    def system(self, text: str) -> str:
        """Set the system message, or show it if there is no text. What was said stays."""
        old = self.messages[0]["content"] if self._has_system else None
        if not text:
            return f"system message: {old}" if old else "there is no system message"
        rest = self.messages[1:] if old is not None else self.messages
        self._replace([{"role": "system", "content": text}, *rest])
        return "the system message is set"

    def save(self, name: str) -> str:
        """Write the messages to a file. Another's file is not overwritten."""
        path = Path(name).expanduser()
        if path.exists() and path != self.file:
            raise ConfigError(f"{path} exists: name another file")
        try:
            path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"cannot save: {error}") from error
        self.file = path
        return f"saved {count(len(self.messages), 'message')} to {path}"

    def load(self, name: str) -> str:
        """Take the messages of a file instead of those that are here."""
        path = Path(name).expanduser()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot load: {error}") from error
        if not isinstance(found, list) or not all(map(_is_message, found)):
            raise ConfigError(f"{path} is no list of messages with role and content")
        self._replace(found)
        self.file = path
        return f"loaded {count(len(found), 'message')}"

    @property
    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def _replace(self, messages: list[Message]) -> None:
        """Other messages, if the model takes them."""
        self.check(messages)
        self.messages, self.cut = messages, None


def count(number: int, what: str) -> str:
    """A number of things in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )
