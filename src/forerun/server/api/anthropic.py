"""Anthropic's messages: `POST /v1/messages`, which assistants for code speak; text and tools.

A request is read as a chat request; the answer is a list of blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.errors import short_repr
from forerun.core.types import FinishReason
from forerun.server.api.openai import ChatRequest, count
from forerun.server.async_request import AsyncRequest
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.content_parts import (
    BlocksBody,
    BlockWriter,
    ContentBlock,
    one_system,
    parts_of,
    reply,
)
from forerun.server.errors import ApiError, invalid, must_be
from forerun.server.http import JsonResponse
from forerun.server.models import FromBody
from forerun.server.openapi import answers, object_of
from forerun.server.schema import TEXT_OR_PARTS, listed
from forerun.server.service import Service
from forerun.server.writer import Document, usage
from forerun.text.messages import text_of

router = APIRouter(route_class=JsonRoute)
ROLES = ("user", "assistant", "system")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_BILLING = "x-anthropic-billing-header:"
_SILENT = "redacted_thinking"
"""A block of Anthropic's own, which only its models read."""
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""By kind of block: the type of its deltas, and their field."""
_TURN = object_of(role={"enum": [*ROLES]}, content={"anyOf": [*TEXT_OR_PARTS]})
AnthropicMessages = Annotated[list[dict[str, Any]], listed(_TURN)]


class CountTokensRequest(BlocksBody):
    """A conversation in Anthropic's form."""

    messages: AnthropicMessages
    """The turns so far, of text, calls and results."""
    system: str | list[dict[str, Any]] | None = None
    """A system message."""
    tool_choice: dict[str, Any] | None = None
    """auto, any, none, or one of the tools."""
    output_config: dict[str, Any] | None = None
    """`format`: the form of the answer."""
    output_format: dict[str, Any] | None = None
    """Its older place."""

    dialect_names: ClassVar = {
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
    }

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        fields = self.but(
            {"system", "messages", "tools", "tool_choice", "output_config", "output_format"}
        )
        fields["messages"] = messages = _messages(self)
        if messages and messages[-1]["role"] == "assistant" and not _says(messages[-1]):
            messages.pop()  # a thought alone cannot be gone on with: the answer begins anew
        if messages and messages[-1]["role"] == "assistant":  # the answer is begun for the model
            fields["continue_final_message"] = True
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
        if self.tool_choice is not None:
            fields |= _choice(self.tool_choice)
        output = self.output_config or {}
        if (effort := output.get("effort")) is not None:
            fields.setdefault("reasoning_effort", effort)
        form = output.get("format", self.output_format)
        if form is not None:
            fields["response_format"] = _response_format(form)
        return fields


Body = TypeVar("Body", bound=CountTokensRequest)


class MessagesRequest(CountTokensRequest):
    """A conversation to answer, in Anthropic's form."""

    max_tokens: int | None = None
    """Tokens of the answer, at most; left out, as many as the context holds."""


@router.post("/v1/messages", responses=answers(streams=True))
async def messages(service: FromBody, request: JsonRequest, body: MessagesRequest) -> Response:
    """Answer in Anthropic's form."""
    return await reply(service, request, _settled(service, body), MessagesWriter)


@router.post("/v1/messages/count_tokens", responses=answers())
async def count_tokens(
    service: FromBody, request: JsonRequest, body: CountTokensRequest
) -> Response:
    """Count the tokens of a prompt in Anthropic's form."""
    chat = ChatRequest.model_validate(_settled(service, body).as_chat())
    return JsonResponse(
        {"input_tokens": await service.aside(request, count(service, request, chat))}
    )


def _settled(service: Service, body: Body) -> Body:
    """Leave out Claude Code's first block: it differs by conversation, so no prefix would be found again."""
    if isinstance(body.system, list) and not service.config.keep_billing_header:
        texts = body.system
        body.system = [*dropwhile(lambda one: str(one.get("text")).startswith(_BILLING), texts)]
    return body


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    for number, message in enumerate(body.messages):
        name, role, content = f"messages[{number}]", message.get("role"), message.get("content")
        if role not in ROLES:
            raise must_be(f"{name}.role", "user, assistant or system", role, "messages")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(one, Mapping) for one in blocks):
            raise must_be(f"{name}.content", "text or a list of blocks", content, "messages")
        messages += _translated(name, role, blocks)
    return one_system(messages)


def _translated(
    name: str, role: object, blocks: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the results of tools as messages of their own, then the message with reasoning, text and calls."""
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking" and isinstance(text := block.get(kind), str):
            texts[kind].append(text)
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            content = _result(name, block)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
        elif (text := text_of(block)) is not None:
            texts["text"].append(text)
        elif kind != _SILENT:
            allowed = "(allowed: text, thinking, tool_use, tool_result, document of text)"
            message = f"{name} has a block of type {short_repr(kind)} {allowed}"
            raise invalid(message, "messages")
    if texts["text"] or calls or texts["thinking"]:
        turn: dict[str, Any] = {"role": role, "content": "\n".join(texts["text"])}
        if texts["thinking"]:
            turn["reasoning_content"] = "\n".join(texts["thinking"])
        yield turn | ({"tool_calls": calls} if calls else {})


def _says(turn: Mapping[str, Any]) -> bool:
    return bool(turn["content"] or turn.get("tool_calls"))


def _result(name: str, block: Mapping[str, Any]) -> object:
    """Return what a tool gave; templates do not read `is_error`, so the text says so."""
    content, is_error = block.get("content"), block.get("is_error")
    if not isinstance(is_error, bool | None):
        what = f"{name} has is_error={short_repr(is_error)}: it must be true or false"
        raise invalid(what, "messages")
    if not is_error:
        return content
    return f"Error: {content}" if isinstance(content, str) else ["Error:", *parts_of(content)]


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return tool
    function = {name: tool[name] for name in ("name", "description") if name in tool}
    function["parameters"] = tool.get("input_schema")
    return {"type": "function", "function": function, "strict": tool.get("strict")}


def _choice(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type")
    fields = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") else {}
    if kind == "tool":
        function = {"name": given.get("name")}
        return fields | {"tool_choice": {"type": "function", "function": function}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise must_be("tool_choice.type", f"{', '.join(_CHOICES)} or tool", kind, "tool_choice")
    return fields | {"tool_choice": _CHOICES[kind]}


def _response_format(form: object) -> dict[str, Any]:
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        message = f'output_config.format must have the type "json_schema", got {short_repr(form)}'
        raise invalid(message, "output_config")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


class MessagesWriter(BlockWriter):
    """Write the events and the document."""

    prefix, ping = "msg", b'event: ping\ndata: {"type":"ping"}\n\n'

    def final(self) -> Document:
        """Write the message."""
        content = [_block(block) for block in self.blocks]
        return self._message(content) | self._stop() | {"timings": self.timings()}

    def begin(self) -> Iterator[Document]:
        """Write the message without its content."""
        yield {"type": "message_start", "message": self._message([])}

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Write a block without its text."""
        content = _block(block)
        if block.kind == "reasoning":
            content["signature"] = ""  # it comes with the end
        yield {"type": "content_block_start", "index": block.index, "content_block": content}

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Write a delta."""
        kind, field = _DELTAS[block.kind]
        delta = {"type": kind, field: text}
        yield {"type": "content_block_delta", "index": block.index, "delta": delta}

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """End the block; a thought is signed."""
        if block.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": _signature(block.text)}
            yield {"type": "content_block_delta", "index": block.index, "delta": delta}
        yield {"type": "content_block_stop", "index": block.index}

    def end(self) -> Iterator[Document]:
        """Write why it ended, and what it took."""
        figures = {"usage": _usage(self.running), "timings": self.timings()}
        yield {"type": "message_delta", "delta": self._stop(), **figures}
        yield {"type": "message_stop"}

    def fail(self, error: ApiError) -> Document:
        """Write an error in Anthropic's form."""
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
            "id": self.id,
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
        return {"type": "thinking", "thinking": block.text, "signature": _signature(block.text)}
    if not block.is_call:
        return {"type": "text", "text": block.text}
    try:
        given = json.loads(block.text) if block.text else {}
    except ValueError:  # it was cut at max_tokens
        given = {}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


def _signature(thought: str) -> str:
    """Sign a thought, since clients send back none without: it is read again as it is, whatever its signature."""
    digest = hashlib.sha256(thought.encode("utf-8", "surrogatepass")).digest()
    return base64.b64encode(digest).decode()


def _usage(running: AsyncRequest) -> Document:
    """Count tokens as Anthropic does: cached ones apart."""
    counts = usage(running)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": counts["completion_tokens"],
    }
