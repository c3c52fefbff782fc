"""A client of servers with OpenAI's API, over the standard library: models, and streamed answers.

What goes wrong is a RemoteError of one line: the connection is refused, a key is missing, a route or model is unknown,
a stream ends before the answer does.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from forerun.core.errors import ConfigError, ForerunError, one_line, reason, short_repr, unknown

TIMEOUT_S = 600.0
"""How long a server may be silent, in the middle of an answer too."""
DONE = b"[DONE]"
_ERRORS = (OSError, http.client.HTTPException)

Body = Mapping[str, object]


class RemoteError(ForerunError):
    """A server cannot be reached, refuses a request, or breaks an answer off."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a streamed answer; usage and timings come with the last one, from servers that have them."""

    text: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    """How far the prompt is read, where that was asked for."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Chunk:
        """Read an event of /chat/completions or /completions."""
        choice: dict[str, Any] = next(iter(event.get("choices") or ()), {})
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("reasoning_content") or choice.get("text") or ""
        reason, timings = choice.get("finish_reason"), event.get("timings")
        progress = event.get("prompt_progress") or {}
        return cls(text, reason, event.get("usage") or {}, timings or {}, progress)


@dataclass(frozen=True, slots=True)
class Remote:
    """A server's address, which ends in /v1 mostly, and the key it asks for."""

    url: str
    api_key: str | None = None
    name: str | None = None
    """Which of its models is meant; servers of one model do not ask."""
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Remote:
        """Read an address as people type it: http:// and /v1 may be left out. Raises ConfigError."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            is_fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_fine = False
        if not is_fine:
            raise ConfigError(f"--url must be http://HOST:PORT/v1 or https, got {short_repr(url)}")
        path = parts.path.rstrip("/") or "/v1"
        return cls(f"{parts.scheme}://{parts.netloc}{path}", api_key)

    def models(self) -> list[dict[str, Any]]:
        """List what is served: `id` is a model's name. Raises RemoteError."""
        with self._answer("GET", "/models") as answer:
            text = answer.read()
        try:
            models = [dict(each) for each in json.loads(text)["data"]]
            return models if all(isinstance(each["id"], str) for each in models) else []
        except (ValueError, KeyError, TypeError):
            raise RemoteError(
                f"{self.url} is not an OpenAI server: /models is {text[:60]!r}"
            ) from None

    def model(self, name: str | None = None) -> dict[str, Any]:
        """Find the model of that name, or the only one. Raises RemoteError and ConfigError."""
        models = {each["id"]: each for each in self.models()}
        if not models:
            raise RemoteError(f"{self.url} serves no model")
        if name is None and len(models) > 1:
            raise ConfigError(f"{self.url} serves {', '.join(models)}: choose with --model")
        if name is not None and name not in models:
            raise ConfigError(unknown("model", name, models))
        return models[name or next(iter(models))]

    @contextmanager
    def stream(self, route: str, body: Body) -> Iterator[ChunkStream]:
        """Ask for an answer as it comes; the end of the block ends the request, too. Raises RemoteError."""
        with self._answer("POST", route, {**body, "stream": True}) as answer:
            yield ChunkStream(self.url, answer)

    @contextmanager
    def _answer(
        self, method: str, route: str, body: Body | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        is_tls = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            try:
                connection.request(method, parts.path + route, data, headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise RemoteError(self._refusal(route, answer))
            except _ERRORS as error:
                why = reason(error)
                raise RemoteError(f"{self.url} does not answer: {why}; is --url right?") from error
            yield answer
        finally:
            connection.close()

    def _refusal(self, route: str, answer: http.client.HTTPResponse) -> str:
        """Explain why a server says no, and what to do."""
        status, message = answer.status, _message(answer.read())
        if status in (401, 403):
            word = "a key" if self.api_key is None else "another key"
            return f"{self.url} wants {word}: give it with --api-key ({status}: {message})"
        if status == 404:
            return f"{self.url}{route} is not there: is --url right? ({status}: {message})"
        return f"{self.url} refuses with {status}: {message}"


class ChunkStream:
    """The events of one answer. `close` may be called from another thread: reading then ends with an error."""

    def __init__(self, url: str, answer: http.client.HTTPResponse) -> None:
        self._url, self._answer = url, answer

    def __iter__(self) -> Iterator[Chunk]:
        for _, chunk in self.read((0.0, piece) for piece in self.pieces()):
            yield chunk

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes as they come, for `read`: a measurement reads them when it has time. Raises RemoteError."""
        try:
            while piece := self._answer.read1():
                yield piece
                if piece.rstrip().endswith(b"data: " + DONE):
                    return
        except (*_ERRORS, ValueError, AttributeError) as error:
            raise RemoteError(f"{self._url} ended the answer early: {reason(error)}") from error

    def read(self, pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, Chunk]]:
        """Yield what is in pieces, each with the time of the piece that it ended in. Raises RemoteError."""
        has_ended = False
        for time_s, data in _data(pieces):
            if data == DONE:
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise RemoteError(
                    f"{self._url} sent a chunk that is not JSON: {data[:60]!r}"
                ) from None
            if "error" in event:
                raise RemoteError(f"{self._url} ended the answer early: {_message(data)}")
            chunk = Chunk.of(event)
            has_ended = has_ended or chunk.finish_reason is not None
            yield time_s, chunk
        if not has_ended:
            raise RemoteError(f"{self._url} ended the answer early: the stream has no end")

    def close(self) -> None:
        """End the request."""
        with suppress(OSError, AttributeError, ValueError):
            # The response owns the socket's file; there is no public way to it.
            self._answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]


def _data(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Find the data of server-sent events."""
    rest = b""
    for time_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time_s, line[5:].strip()


def _message(text: bytes) -> str:
    """Find the message in an error's body: OpenAI's, FastAPI's or any text."""
    message: Any = text.decode(errors="replace")
    with suppress(ValueError):
        message = json.loads(text)
    for key in ("error", "message", "detail"):
        message = message.get(key) or message if isinstance(message, dict) else message
    return one_line(str(message))
