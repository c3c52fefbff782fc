"""The messages of a `forerun chat`: they are sent, shown, saved and loaded, whichever model answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forerun.cli.chat_input import help_text, parse
from forerun.cli.chat_models import ChatModel, Message
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.paths import expanded
from forerun.system.files import open_private, read_text


@dataclass(slots=True)
class Conversation:
    """Messages and answers. Raises ForerunError for what cannot be done; the messages are then as before."""

    model: ChatModel
    messages: list[Message] = field(default_factory=list)
    rest: Sequence[int] = ()
    """Token ids of the last prompt and answer, if that was cut and can go on."""
    attached: list[str] = field(default_factory=list)
    """Texts of files that go before the next message."""
    file: Path | None = None
    """Where it was saved or loaded, which saving again may overwrite."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended the last answer."""
    num_answers: int = 0
    num_tokens: int = 0

    def start(self, system: str | None) -> None:
        """Check that the model can talk, and with that system message. Raises RequestError."""
        self._replace([{"role": "system", "content": system}] if system else [])

    def run(self, text: str) -> str:
        """Send a message, go on with an answer or do a command; a line about it. Raises EOFError for /exit."""
        if not text:
            return self.resume()
        if not text.startswith("/"):
            return self.send(text)
        name, argument = parse(text)
        if name == "exit":
            raise EOFError
        if name == "help":
            return help_text()
        method = self.model.drafter if name == "drafter" else getattr(self, name)
        return str(method(argument))

    def send(self, text: str) -> str:
        """Print the answer to a message and return a line about it. A message without an answer is forgotten."""
        content, before = "\n\n".join([*self.attached, text]), self.messages
        try:
            line = self._answer([*before, {"role": "user", "content": content}])
        except CapacityError as error:
            way_out = "; /undo takes back what was read" if self.attached else ""
            raise CapacityError(f"{error}{way_out}") from error
        if self.messages is before:
            return f"{line}\nthere is no answer: the message was removed"
        self.attached = []
        return line

    def resume(self) -> str:
        """Print more of an answer that was cut and return a line about it."""
        if not self.rest:
            raise ConfigError(
                "the last answer is complete and cannot be continued: write a message"
            )
        return self._answer(self.messages[:-1], self.messages[-1]["content"], self.rest)

    def _answer(
        self, messages: Sequence[Message], begun: str = "", token_ids: Sequence[int] = ()
    ) -> str:
        reply = self.model.answer(messages, token_ids)
        text = begun + reply.text
        if text:
            self.messages = [*messages, {"role": "assistant", "content": text}]
        self.rest = reply.token_ids if text else ()
        self.is_interrupted = not reply.is_complete
        self.num_answers += 1
        self.num_tokens += reply.num_tokens
        return reply.line

    def regen(self, _: str = "") -> str:
        """Print another answer to the last message and return a line about it. Without one the old answer stays."""
        before, at = self.messages, self._last_question + 1
        line = self._answer(before[:at])
        same = self.messages == before and self.messages is not before
        return (
            f"{line}\nthe same answer as before: --temperature 0.7 gives different ones"
            if same
            else line
        )

    def undo(self, _: str = "") -> str:
        """Take back the files that go before the next message, or else the last message and its answer."""
        if self.attached:
            self.attached = []
            return "taken back: the files"
        at = self._last_question
        text = " ".join(self.messages[at]["content"].split())
        self.messages, self.rest = self.messages[:at], ()
        return f"taken back: {text if len(text) <= 60 else text[:57] + '...'}"

    @property
    def _last_question(self) -> int:
        """Find the last message of the user. Raises ConfigError if there is none."""
        for at in reversed(range(len(self.messages))):
            if self.messages[at]["role"] == "user":
                return at
        raise ConfigError("there is no message yet")

    def read(self, name: str) -> str:
        """Put a file's text before the next message."""
        text = read_text(name)
        if not text.strip():
            raise ConfigError(f"{name} is empty")
        self.attached.append(text.rstrip("\n"))
        return f"{_count(len(text), 'character')} of {name} will be put before the next message"

    def clear(self, _: str = "") -> str:
        """Forget all but the system message."""
        self.messages = self.messages[:1] if self._has_system else []
        self.rest, self.attached = (), []
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
        path = expanded(name)
        if path.exists() and path != self.file:
            raise ConfigError(f"{path} exists: name another file")
        try:
            with open_private(path, "w") as file:
                file.write(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        self.file = path
        return f"saved {_count(len(self.messages), 'message')} to {path}"

    def load(self, name: str) -> str:
        """Take the messages of a file instead of those that are here."""
        path = expanded(name)
        try:
            messages = json.loads(read_text(path))
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise ConfigError(f"{path} is not a list of messages with role and content")
        self._replace(messages)
        self.file = path
        return f"loaded {_count(len(messages), 'message')}"

    def summary(self) -> str:
        """Write one line about all answers."""
        answers = _count(self.num_answers, "answer")
        return f"{answers}, {self.num_tokens} tokens{self.model.summary()}"

    @property
    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def _replace(self, messages: list[Message]) -> None:
        """Take other messages, if the model does."""
        self.model.check(messages)
        self.messages, self.rest = messages, ()


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )
