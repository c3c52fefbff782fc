"""The conversation of `forerun chat --url` with a server of OpenAI's API, and what its answers took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.cli import console
from forerun.cli.messages import Messages, count
from forerun.core.errors import ConfigError
from forerun.server.client import Chunk, ChunkStream, Remote

ROUTE = "/chat/completions"
OURS = "forerun"


@dataclass(slots=True)
class RemoteConversation(Messages):
    """Messages and a server's answers. An answer that was cut cannot go on there."""

    remote: Remote
    body: Mapping[str, object]
    """The settings that the user gave; the others are the server's."""
    is_ours: bool = False
    """Whether the server takes `speculative`."""
    drafter_name: str | None = None
    """What /drafter asked for."""
    was_stopped: bool = False
    """Whether Ctrl-C ended the last answer."""
    answers: int = 0
    tokens: int = 0

    @classmethod
    def of(
        cls, remote: Remote, model: str | None, body: Mapping[str, object]
    ) -> RemoteConversation:
        """A conversation with one of a server's models. Raises RemoteError and ConfigError."""
        found = remote.model(model)
        there = Remote(remote.url, remote.api_key, str(found["id"]))
        return cls(there, body, found.get("owned_by") == OURS)

    def title(self) -> str:
        """What answers, and where."""
        return f"{self.remote.name} at {self.remote.url}"

    def say(self, text: str) -> str:
        """Print the answer to a message; a line about it. A message without an answer is forgotten."""
        asked = [*self.messages, {"role": "user", "content": text}]
        body: dict[str, object] = {"model": self.remote.name, "messages": asked, **self.body}
        body["stream_options"] = {"include_usage": True}
        if self.drafter_name is not None:
            body["speculative"] = {"drafter": self.drafter_name}
        answer = _Answer()
        with self.remote.stream(ROUTE, body) as stream:
            self.was_stopped = not answer.show(stream)
        if answer.text:
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        self.answers += 1
        self.tokens += answer.num_tokens
        if self.was_stopped:
            return f"{answer.line()}\nstopped"
        if answer.last.finish_reason == "length":
            return f"{answer.line()}\ncut at {answer.num_tokens} tokens (--max-tokens)"
        return answer.line()

    def go_on(self) -> str:
        """There is nothing to go on with."""
        raise ConfigError("a server cannot go on with an answer: ask it for the rest")

    def drafter(self, spec: str) -> str:
        """Ask for another drafter, where the server can, or say which was asked for."""
        if not self.is_ours:
            raise ConfigError("/drafter needs forerun serve; this server does not take it")
        if not spec:
            return f"drafter {self.drafter_name or 'as the server has it'}"
        self.drafter_name = spec
        return f"drafter {spec}: auto, none, or the one that the server has"

    def summary(self) -> str:
        """One line about all answers."""
        return f"{count(self.answers, 'answer')}, {self.tokens} tokens"


class _Answer:
    """What a stream has brought so far."""

    def __init__(self) -> None:
        self.text, self.last, self._times = "", Chunk(), list[float]()

    def show(self, stream: ChunkStream) -> bool:
        """Print the text as it comes. False if Ctrl-C ended it; what was printed stands. Raises RemoteError."""
        out = console.stdout()
        try:
            for chunk in stream:
                if chunk.text:
                    self._times.append(time.perf_counter())
                    self.text += chunk.text
                    out.print(chunk.text, end="")
                    out.file.flush()
                self.last = Chunk(
                    finish_reason=chunk.finish_reason or self.last.finish_reason,
                    usage=chunk.usage or self.last.usage,
                    timings=chunk.timings or self.last.timings,
                )
        except KeyboardInterrupt:
            return False
        finally:
            if self.text:
                out.print()
        return True

    @property
    def num_tokens(self) -> int:
        """As the server counts them; else a chunk is a token."""
        return int(self.last.usage.get("completion_tokens", len(self._times)))

    def line(self) -> str:
        """One line for people."""
        given: Mapping[str, Any] = self.last.timings
        lasted_s = self._times[-1] - self._times[0] if self._times else 0.0
        speed = given.get("predicted_per_second") or (
            (self.num_tokens - 1) / lasted_s if lasted_s else 0.0
        )
        text = f"{self.num_tokens} tokens, {speed:.1f} tok/s"
        if drafted := given.get("draft_n"):
            accepted = given.get("draft_n_accepted", 0)
            text += f"; {given.get('drafter', 'drafter')}: "
            if tau := given.get("tokens_per_pass"):
                text += f"{console.tokens_per_pass(tau)}, "
            text += f"accepted {accepted} of {drafted} drafted ({accepted / drafted:.0%})"
        return text
