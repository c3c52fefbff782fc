"""Answers as a list of blocks, a text or a call each: what OpenAI's responses and Anthropic's messages have in common.

A `Dialect` writes the documents; which block begins, grows and ends is found here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from forerun.core.types import FinishReason
from forerun.server.answers import Document
from forerun.server.errors import ApiError, of_stream
from forerun.server.http import to_json
from forerun.server.parts import CallDelta, Delta, Reader, TextDelta
from forerun.server.worker import AsyncRequest, StreamEvent


@dataclass(slots=True)
class ContentBlock:
    """A text, or a call with its arguments as text."""

    index: int
    call_id: str | None = None
    name: str = ""
    text: str = ""

    @property
    def is_call(self) -> bool:
        """True for a call."""
        return self.call_id is not None


@dataclass(slots=True)
class BlockAnswer:
    """What is known of an answer: its blocks, and why it ended once it has."""

    request: AsyncRequest
    blocks: list[ContentBlock] = field(default_factory=list)
    reason: FinishReason | None = None
    stop: str | int | None = None
    """The stop string, or the token of `stop_token_ids`, that ended it."""
    end_s: float = 0.0

    @property
    def has_calls(self) -> bool:
        """True if there is a call among its blocks."""
        return any(block.is_call for block in self.blocks)


class Dialect(Protocol):
    """How an API writes such an answer. Events are documents with a `type`."""

    def whole(self, answer: BlockAnswer) -> Document:
        """The document of an answer that is complete."""
        ...

    def begin(self, answer: BlockAnswer) -> Iterator[Document]:
        """The first events."""
        ...

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """A block begins; it has no text yet."""
        ...

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """More of its text, or of its arguments."""
        ...

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """A block is complete."""
        ...

    def end(self, answer: BlockAnswer) -> Iterator[Document]:
        """The last events."""
        ...

    def fail(self, error: ApiError) -> Document:
        """What went wrong after the first event."""
        ...


@dataclass(slots=True, kw_only=True)
class BlockWriter:
    """One request's answer, of one completion, in a dialect. `observe` is called with all that comes."""

    request: AsyncRequest
    dialect: Dialect
    observe: Callable[[StreamEvent], object]
    reader: Reader
    _answer: BlockAnswer = field(init=False)

    def __post_init__(self) -> None:
        self._answer = BlockAnswer(self.request)

    async def whole(self) -> Document:
        """The document, when the answer is complete. Raises what ended the request."""
        async for found in self.request.news():
            for news in found:
                for _ in self._take(news):
                    pass
        return self.dialect.whole(self._answer)

    async def stream(self) -> AsyncIterator[bytes]:
        """The events, and what went wrong if anything did."""
        has_begun = False
        try:
            async for found in self.request.news():
                if not has_begun:  # what was cached is known now
                    yield _events(self.dialect.begin(self._answer))
                    has_begun = True
                if events := b"".join(_events(self._take(news)) for news in found):
                    yield events
            yield _events(self.dialect.end(self._answer))
        except Exception as error:
            yield _events(iter([self.dialect.fail(of_stream(error))]))

    def _take(self, news: StreamEvent) -> Iterator[Document]:
        self.observe(news)
        answer, event = self._answer, news.event
        answer.end_s, answer.reason = news.time_s, event.finish_reason
        for delta in self.reader.read(event.text, is_last=event.finish_reason is not None):
            yield from self._grow(delta)
        if event.finish_reason is not None:
            answer.stop = self.request.handles[0].runs[0].stops.stop_reason
            yield from self._close()

    def _grow(self, delta: Delta) -> Iterator[Document]:
        blocks = self._answer.blocks
        match delta:
            case TextDelta(text):
                if not blocks or blocks[-1].is_call:
                    yield from self._open(ContentBlock(len(blocks)))
            case CallDelta(_, call_id, name, text):
                if name is not None:
                    yield from self._open(ContentBlock(len(blocks), call_id, name))
        if text:
            blocks[-1].text += text
            yield from self.dialect.grow(blocks[-1], text)

    def _open(self, block: ContentBlock) -> Iterator[Document]:
        yield from self._close()
        self._answer.blocks.append(block)
        yield from self.dialect.open(block)

    def _close(self) -> Iterator[Document]:
        if self._answer.blocks:
            yield from self.dialect.close(self._answer.blocks[-1])


def _events(documents: Iterator[Document]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (document["type"].encode(), to_json(document))
        for document in documents
    )
