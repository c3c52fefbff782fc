"""Anthropic's messages: `POST /v1/messages`, which assistants for code speak; text and tools.

A request is read as a chat request; the answer is a list of blocks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.errors import short_repr
from forerun.core.types import FinishReason
from forerun.server.async_request import AsyncRequest
from forerun.server.blocks import BlockWriter, ContentBlock, one_system, parts_of, reply
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import ApiError, invalid
from forerun.server.fleet import FromBody
from forerun.server.http import JsonResponse
from forerun.server.openai import ChatRequest, count
from forerun.server.openapi import COUNT, TEXT, answers, list_of, object_of
from forerun.server.schema import TEXT_OR_PARTS, OpenBody, listed
from forerun.server.writer import Document, usage

router = APIRouter(route_class=JsonRoute)
ERROR = object_of(type={"const": "error"}, error=object_of(type=TEXT, message=TEXT))
"""What errors look like here."""
ROLES = ("user", "assistant", "system")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SILENT = "redacted_thinking"
"""A block of Anthropic's own, which only its models read."""
_TURN = {
    "type": "object",
    "properties": {"role": {"enum": [*ROLES]}, "content": {"anyOf": [*TEXT_OR_PARTS]}},
    "required": ["role", "content"],
}
AnthropicMessages = Annotated[list[dict[str, Any]], listed(_TURN)]
_MESSAGE = object_of(
    id=TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    content=list_of(object_of(type=TEXT)),
    stop_reason=TEXT,
    usage=object_of(input_tokens=COUNT, output_tokens=COUNT),
)


class CountTokensRequest(OpenBody):
    """A conversation in Anthropic's form."""

    messages: AnthropicMessages
    """The turns so far, of text, calls and results."""
    system: str | list[dict[str, Any]] | None = None
    """A system message."""
    tool_choice: dict[str, Any] | None = None
    """auto, any, none, or one of the tools."""
    output_config: dict[str, Any] | None = None
    """`format`: the form of the answer."""

    theirs: ClassVar = {
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
    }

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        own = {"system", "messages", "tools", "tool_choice", "output_config"}
        fields = {name: value for name, value in self.model_dump().items() if name not in own}
        fields["messages"] = _messages(self)
        if self.tools:
            fields["tools"] = [_tool(number, tool) for number, tool in enumerate(self.tools)]
        if self.tool_choice is not None:
            fields |= _choice(self.tool_choice)
        form = (self.output_config or {}).get("format")
        if form is not None:
            fields["response_format"] = _response_format(form)
        return fields


class MessagesRequest(CountTokensRequest):
    """A conversation to answer, in Anthropic's form."""

    max_tokens: int
    """Tokens of the answer, at most."""


@router.post("/v1/messages", responses=answers(_MESSAGE, streams=True))
async def messages(service: FromBody, request: JsonRequest, body: MessagesRequest) -> Response:
    """Answer in Anthropic's form."""
    return await reply(service, request, body, MessagesWriter)


@router.post("/v1/messages/count_tokens", responses=answers(object_of(input_tokens=COUNT)))
async def count_tokens(
    service: FromBody, request: JsonRequest, body: CountTokensRequest
) -> Response:
    """Count the tokens of a prompt in Anthropic's form."""
    chat = ChatRequest.model_validate(body.as_chat())
    return JsonResponse({"input_tokens": await count(service, request, chat)})


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    for number, message in enumerate(body.messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            what = (
                f"messages[{number}].role must be user, assistant or system, got {short_repr(role)}"
            )
            raise invalid(what, "messages")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(one, Mapping) for one in blocks):
            what = f"messages[{number}].content must be text or a list of blocks"
            raise invalid(f"{what}, got {short_repr(content)}", "messages")
        messages += _translated(number, role, blocks)
    if messages and messages[-1]["role"] == "assistant":
        what = "the last message must be the user's: an answer cannot be begun for the model"
        raise invalid(what, "messages")
    return one_system(messages)


def _translated(
    number: int, role: object, blocks: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the results of tools as messages of their own, then what is thought, said and called."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            content = _result(number, block)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
        elif kind != _SILENT:
            what = f"messages[{number}] has a block of type {short_repr(kind)}"
            allowed = "(allowed: text, thinking, tool_use, tool_result)"
            raise invalid(f"{what} {allowed}", "messages")
    if texts or calls:
        said: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            said["reasoning_content"] = "\n".join(thoughts)
        yield said | ({"tool_calls": calls} if calls else {})


def _result(number: int, block: Mapping[str, Any]) -> object:
    """Return what a tool gave; templates have no place for `is_error`, so the text says so."""
    content, is_error = block.get("content"), block.get("is_error")
    if not isinstance(is_error, bool | None):
        what = f"messages[{number}] has is_error={short_repr(is_error)}: it must be true or false"
        raise invalid(what, "messages")
    if not is_error:
        return content
    return f"Error: {content}" if isinstance(content, str) else ["Error:", *parts_of(content)]


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        message = f"tools[{number}] is run by Anthropic's servers: only own tools can be used here"
        raise invalid(message, "tools")
    known = {name: tool[name] for name in ("name", "description") if name in tool}
    function = {**known, "parameters": tool.get("input_schema")}
    return {"type": "function", "function": function, "strict": tool.get("strict")}


def _choice(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, found = given.get("type"), dict[str, Any]()
    if given.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    if kind == "tool":
        function = {"name": given.get("name")}
        return found | {"tool_choice": {"type": "function", "function": function}}
    if kind not in _CHOICES:
        what = f"{', '.join(_CHOICES)} or tool"
        message = f"tool_choice.type must be {what}, got {short_repr(kind)}"
        raise invalid(message, "tool_choice")
    return found | {"tool_choice": _CHOICES[kind]}


def _response_format(form: object) -> dict[str, Any]:
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        message = f'output_config.format must have the type "json_schema", got {short_repr(form)}'
        raise invalid(message, "output_config")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


class MessagesWriter(BlockWriter):
    """Write the events and the document."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._id = f"msg_{uuid.uuid4().hex}"

    def whole(self) -> Document:
        """Write the message."""
        content = [_block(block) for block in self.blocks]
        return self._message(content) | self._stop() | {"timings": self.timings()}

    def begin(self) -> Iterator[Document]:
        """Write the message without its content."""
        yield {"type": "message_start", "message": self._message([])}

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Write a block without its text."""
        yield {"type": "content_block_start", "index": block.index, "content_block": _block(block)}

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Write a delta."""
        delta = {"type": "text_delta", "text": text}
        if block.kind == "reasoning":
            delta = {"type": "thinking_delta", "thinking": text}
        if block.is_call:
            delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_delta", "index": block.index, "delta": delta}

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """End the block."""
        yield {"type": "content_block_stop", "index": block.index}

    def end(self) -> Iterator[Document]:
        """Write why it ended, and what it took."""
        figures = {"usage": _usage(self.running), "timings": self.timings()}
        yield {"type": "message_delta", "delta": self._stop(), **figures}
        yield {"type": "message_stop"}

    def fail(self, error: ApiError) -> Document:
        """Write an error."""
        return error.anthropic()

    def _stop(self) -> Document:
        stop = self.running.runs[0].stops.stop_reason
        if self.reason is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        has_calls = any(block.is_call for block in self.blocks)
        return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}

    def _message(self, content: list[Document]) -> Document:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self.running),
        }


def _block(block: ContentBlock) -> Document:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if not block.is_call:
        return {"type": "text", "text": block.text}
    try:
        given = json.loads(block.text) if block.text else {}
    except ValueError:  # it was cut at max_tokens
        given = {}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


def _usage(running: AsyncRequest) -> Document:
    """Count tokens as Anthropic does: cached ones apart."""
    found = usage(running)
    cached = found["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": found["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": found["completion_tokens"],
    }
