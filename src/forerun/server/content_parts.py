"""Answers as a list of blocks, a text or a call each, as OpenAI's responses and Anthropic's messages have them."""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.responses import Response

from forerun.core.errors import RequestError
from forerun.core.types import FinishReason
from forerun.server.api.openai import ChatRequest, submit
from forerun.server.async_request import AsyncRequest, StreamEvent
from forerun.server.bodies import JsonRequest
from forerun.server.errors import ApiError, invalid, of_exception, renamed
from forerun.server.schema import AnswerRequest, OpenBody
from forerun.server.service import Service
from forerun.server.writer import Document, NewParser, Writer
from forerun.text.parsing.parts import CallPart, ContentPart, Part, ReasoningPart

ONLY_CHAT = (
    *("n", "logprobs", "top_logprobs", "prompt_logprobs"),
    *("timings_per_token", "return_progress"),
)
"""Fields that such an answer cannot show."""


BlockKind = Literal["text", "reasoning", "call"]
_KINDS: Mapping[type, BlockKind] = {ContentPart: "text", ReasoningPart: "reasoning"}


@dataclass(slots=True)
class ContentBlock:
    """A text, what the model thinks, or a call with its arguments as text."""

    index: int
    call_id: str | None = None
    name: str = ""
    text: str = ""
    kind: BlockKind = "text"
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Unlike those of all other blocks."""

    @property
    def is_call(self) -> bool:
        """True for a call."""
        return self.kind == "call"


def one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the system and developer messages at the beginning: many templates take one."""
    others = (i for i, one in enumerate(messages) if one["role"] not in ("system", "developer"))
    count = next(others, len(messages))
    if count < 2:
        return messages
    parts = [part for one in messages[:count] for part in parts_of(one["content"])]
    return [{"role": "system", "content": parts}, *messages[count:]]


def parts_of(content: object) -> list[object]:
    """Return a content as a list of parts."""
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


class BlockWriter(Writer):
    """Write the answer of one completion as blocks. Events are documents with a `type`."""

    prefix = ""
    """What the answer's id begins with."""

    def __init__(
        self, service: Service, running: AsyncRequest, body: OpenBody, new_parser: NewParser
    ) -> None:
        """`new_parser` makes what splits the answer."""
        super().__init__(service, running, body.model, new_parser)
        self.body, self.blocks = body, list[ContentBlock]()
        self.id, self.created = f"{self.prefix}_{uuid.uuid4().hex}", int(time.time())
        self.is_cut = False
        """Whether the answer has ended, at its limit: then the last block is not whole."""

    @abstractmethod
    def final(self) -> Document:
        """Write the document of an answer whose blocks are complete."""

    @abstractmethod
    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Begin a block; it has no text yet."""

    @abstractmethod
    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Add to its text, or to its arguments."""

    @abstractmethod
    def close(self, block: ContentBlock) -> Iterator[Document]:
        """End a block."""

    @property
    def reason(self) -> FinishReason | None:
        """Why the answer ended."""
        return self.running.runs[0].seq.finish_reason

    def document(self) -> Document:
        """Write the whole answer."""
        for _ in self._read(self.running.runs[0].text, is_last=True):
            pass
        return self.final()

    def chunks(self, events: Sequence[StreamEvent]) -> Iterator[Document]:
        """Write what became of the blocks."""
        for step in events:
            is_last = step.event.finish_reason is not None
            yield from self._read(step.event.text, is_last=is_last)

    def _read(self, text: str, *, is_last: bool) -> Iterator[Document]:
        is_cut = self.reason is FinishReason.LENGTH
        for part in self.parsers[0].read(text, is_last=is_last, is_cut=is_cut):
            yield from self._grow(part)
        if is_last:
            self.is_cut = is_cut
            yield from self._close()

    def _grow(self, part: Part) -> Iterator[Document]:
        if isinstance(part, CallPart):
            yield from self._open(ContentBlock(len(self.blocks), part.id, part.name, kind="call"))
            return
        kind = _KINDS.get(type(part))
        if kind is not None and (not self.blocks or self.blocks[-1].kind != kind):
            yield from self._open(ContentBlock(len(self.blocks), kind=kind))
        if part.text:
            self.blocks[-1].text += part.text
            yield from self.grow(self.blocks[-1], part.text)

    def _open(self, block: ContentBlock) -> Iterator[Document]:
        yield from self._close()
        self.blocks.append(block)
        yield from self.open(block)

    def _close(self) -> Iterator[Document]:
        if self.blocks:
            yield from self.close(self.blocks[-1])


class BlocksBody(OpenBody):
    """A conversation that is answered with blocks."""

    @property
    def earlier(self) -> Sequence[int]:
        """Token ids that stand before the conversation."""
        return ()

    def check(self) -> None:
        """Check it as the chat request that says the same. Raises ApiError, with fields as the client calls them."""
        try:
            self.chat().check()
        except (ApiError, RequestError) as error:
            raise renamed(of_exception(error), self.dialect_names) from error

    def chat(self) -> ChatRequest:
        """Return the chat request that says the same. Raises ApiError."""
        chat = ChatRequest.model_validate(self.as_chat())
        check_shown(chat)
        return chat


def check_shown(body: AnswerRequest) -> None:
    """Raise ApiError for a field whose answer has no place among blocks."""
    for name in ONLY_CHAT:
        value = getattr(body, name, None)
        if value and (name, value) != ("n", 1):
            raise invalid(f"{name} is supported in /v1/chat/completions only", name)


async def reply(
    service: Service, request: JsonRequest, body: BlocksBody, writer: type[BlockWriter]
) -> Response:
    """Answer a conversation as `writer` writes it. Raises ApiError, with fields named as the client calls them."""
    service.name(body.model)
    try:
        chat = body.chat()
        running, new_parser = await submit(service, request, chat, body.earlier)
    except (ApiError, RequestError) as error:
        raise renamed(of_exception(error), body.dialect_names) from error
    answer = writer(service, running, body, new_parser)
    return await answer.reply(request, stream=chat.stream)
