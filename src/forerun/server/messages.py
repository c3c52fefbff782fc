"""Anthropic's messages: `POST /v1/messages`, which assistants for code speak; text and tools.

A request is read as a chat request; the answer is a list of blocks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.core.errors import short_repr
from forerun.core.types import FinishReason
from forerun.server.answers import Document, timings, usage
from forerun.server.blocks import BlockAnswer, ContentBlock
from forerun.server.conversations import ANTHROPIC_ROLES
from forerun.server.errors import ApiError
from forerun.server.schema import CountTokensRequest

NAMES = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
}
"""What our fields are called here."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SILENT = ("thinking", "redacted_thinking")
"""Blocks of earlier answers that models here have no use for."""


def as_chat(body: CountTokensRequest) -> dict[str, Any]:
    """The fields of the chat request that says the same. Raises ApiError."""
    own = {"system", "messages", "tools", "tool_choice", "output_config"}
    fields = {name: value for name, value in body.model_dump().items() if name not in own}
    fields["messages"] = _messages(body)
    if body.tools:
        fields["tools"] = [_tool(number, tool) for number, tool in enumerate(body.tools)]
    if body.tool_choice is not None:
        fields |= _choice(body.tool_choice)
    form = (body.output_config or {}).get("format")
    if form is not None:
        fields["response_format"] = _response_format(form)
    return fields


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    for number, message in enumerate(body.messages):
        role, content = message.get("role"), message.get("content")
        if role not in ANTHROPIC_ROLES:
            what = (
                f"messages[{number}].role must be user, assistant or system, got {short_repr(role)}"
            )
            raise ApiError(400, what, param="messages")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(one, Mapping) for one in blocks):
            what = f"messages[{number}].content must be text or a list of blocks"
            raise ApiError(400, f"{what}, got {short_repr(content)}", param="messages")
        messages += _translated(number, role, blocks)
    if messages and messages[-1]["role"] == "assistant":
        what = "the last message must be the user's: an answer cannot be begun for the model"
        raise ApiError(400, what, param="messages")
    return messages


def _translated(
    number: int, role: object, blocks: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The results of tools as messages of their own, then what is said and called."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = {"tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
            yield {"role": "tool", **result}
        elif kind not in _SILENT:
            what = f"messages[{number}] has a block of type {short_repr(kind)}"
            allowed = "(allowed: text, tool_use, tool_result)"
            raise ApiError(400, f"{what} {allowed}", param="messages")
    if texts or calls:
        said: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        yield said | ({"tool_calls": calls} if calls else {})


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        message = f"tools[{number}] is run by Anthropic's servers: only own tools can be used here"
        raise ApiError(400, message, param="tools")
    known = {name: tool[name] for name in ("name", "description") if name in tool}
    return {"type": "function", "function": {**known, "parameters": tool.get("input_schema")}}


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
        raise ApiError(400, message, param="tool_choice")
    return found | {"tool_choice": _CHOICES[kind]}


def _response_format(form: object) -> dict[str, Any]:
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        message = f'output_config.format must have the type "json_schema", got {short_repr(form)}'
        raise ApiError(400, message, param="output_config")
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


@dataclass(slots=True)
class MessagesDialect:
    """Writes the events and the document."""

    model: str
    drafter: str
    _id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def whole(self, answer: BlockAnswer) -> Document:
        """The message."""
        found = timings(answer.request, answer.end_s, self.drafter)
        content = [_block(block) for block in answer.blocks]
        return self._message(answer, content) | _stop(answer) | {"timings": found}

    def begin(self, answer: BlockAnswer) -> Iterator[Document]:
        """The message without its content."""
        yield {"type": "message_start", "message": self._message(answer, [])}

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """A block without its text."""
        yield {"type": "content_block_start", "index": block.index, "content_block": _block(block)}

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """A delta."""
        delta = {"type": "text_delta", "text": text}
        if block.is_call:
            delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_delta", "index": block.index, "delta": delta}

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """The block is complete."""
        yield {"type": "content_block_stop", "index": block.index}

    def end(self, answer: BlockAnswer) -> Iterator[Document]:
        """Why it ended, and what it took."""
        found = timings(answer.request, answer.end_s, self.drafter)
        delta = {"delta": _stop(answer), "usage": _usage(answer), "timings": found}
        yield {"type": "message_delta", **delta}
        yield {"type": "message_stop"}

    def fail(self, error: ApiError) -> Document:
        """An error."""
        return error.anthropic()

    def _message(self, answer: BlockAnswer, content: list[Document]) -> Document:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(answer),
        }


def _block(block: ContentBlock) -> Document:
    if not block.is_call:
        return {"type": "text", "text": block.text}
    try:
        given = json.loads(block.text) if block.text else {}
    except ValueError:  # it was cut at max_tokens
        given = {}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


def _stop(answer: BlockAnswer) -> Document:
    if answer.reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(answer.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    return {"stop_reason": "tool_use" if answer.has_calls else "end_turn", "stop_sequence": None}


def _usage(answer: BlockAnswer) -> Document:
    """Anthropic counts cached tokens apart."""
    found = usage(answer.request)
    cached = found["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": found["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": found["completion_tokens"],
    }
