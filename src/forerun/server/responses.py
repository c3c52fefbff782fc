"""OpenAI's responses: `POST /v1/responses`, text and tools, without stored state.

A request is read as a chat request; the answer is a list of items.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.core.errors import short_repr
from forerun.core.types import FinishReason
from forerun.server.answers import Document, timings, usage
from forerun.server.blocks import BlockAnswer, ContentBlock
from forerun.server.conversations import check_roles
from forerun.server.errors import ApiError
from forerun.server.schema import ResponsesRequest

_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "temperature", "top_p"),
    *("tools", "tool_choice", "parallel_tool_calls", "text"),
)
"""Fields of the request that the response repeats."""


NAMES = {
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""What our fields are called here."""


def as_chat(body: ResponsesRequest) -> dict[str, Any]:
    """The fields of the chat request that says the same. Raises ApiError."""
    own = {"input", "instructions", "text", "tools", "tool_choice"}
    fields = {name: value for name, value in body.model_dump().items() if name not in own}
    fields["messages"] = _messages(body)
    if body.text is not None:
        fields["response_format"] = _response_format(body.text)
    if body.tools:
        fields["tools"] = [_tool(tool) for tool in body.tools]
    choice = body.tool_choice
    if isinstance(choice, Mapping) and "name" in choice:
        choice = {"type": "function", "function": {"name": choice["name"]}}
    fields["tool_choice"] = choice
    return fields


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    check_roles([item for item in body.input if item.get("type", "message") == "message"], "input")
    for number, item in enumerate(body.input):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **result})
        elif kind != "reasoning":
            what = "message, function_call or function_call_output"
            message = f"input[{number}].type must be {what}, got {short_repr(kind)}"
            raise ApiError(400, message, param="input")
    return messages


def _response_format(text: Mapping[str, Any]) -> dict[str, Any]:
    given = text.get("format") or {"type": "text"}
    if not isinstance(given, Mapping):
        raise ApiError(400, f"text.format must be an object, got {short_repr(given)}", param="text")
    if given.get("type") != "json_schema":
        return {**given}
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema")}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Its fields stand beside the type here, in chat requests in an object of their own."""
    known = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": tool.get("type"), "function": known}


@dataclass(slots=True)
class ResponsesDialect:
    """Writes the events and the document."""

    model: str
    drafter: str
    body: ResponsesRequest
    _id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    _created: int = field(default_factory=lambda: int(time.time()))
    _number: int = -1
    _ids: dict[int, str] = field(default_factory=dict)

    def whole(self, answer: BlockAnswer) -> Document:
        """The response."""
        is_cut = answer.reason is FinishReason.LENGTH
        document = self._response("incomplete" if is_cut else "completed")
        document["output"] = [self._item(block, "completed") for block in answer.blocks]
        if is_cut:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
            if document["output"]:
                document["output"][-1]["status"] = "incomplete"
        document["timings"] = timings(answer.request, answer.end_s, self.drafter)
        return document | {"usage": _usage(answer)}

    def begin(self, answer: BlockAnswer) -> Iterator[Document]:
        """The response without its output."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """An item, and for a text its only part."""
        item = self._item(block, "in_progress")
        where = {"output_index": block.index}
        if block.is_call:
            yield self._event("response.output_item.added", item=item, **where)
            return
        part = item["content"].pop()
        yield self._event("response.output_item.added", item=item, **where)
        where |= {"item_id": item["id"], "content_index": 0}
        yield self._event("response.content_part.added", part=part, **where)

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """A delta."""
        yield self._event(f"response.{_kind(block)}.delta", delta=text, **self._where(block))

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """The whole text, part and item once more."""
        item, where = self._item(block, "completed"), self._where(block)
        said = (
            {"arguments": block.text, "name": block.name} if block.is_call else {"text": block.text}
        )
        yield self._event(f"response.{_kind(block)}.done", **said, **where)
        if not block.is_call:
            where.pop("logprobs")
            yield self._event("response.content_part.done", part=item["content"][0], **where)
        yield self._event("response.output_item.done", item=item, output_index=block.index)

    def end(self, answer: BlockAnswer) -> Iterator[Document]:
        """The whole response."""
        document = self.whole(answer)
        yield self._event(f"response.{document['status']}", response=document)

    def fail(self, error: ApiError) -> Document:
        """An error."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _event(self, kind: str, **fields: object) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _where(self, block: ContentBlock) -> Document:
        where: Document = {"item_id": self._id_of(block), "output_index": block.index}
        return where if block.is_call else where | {"content_index": 0, "logprobs": []}

    def _id_of(self, block: ContentBlock) -> str:
        prefix = "fc" if block.is_call else "msg"
        return self._ids.setdefault(block.index, f"{prefix}_{uuid.uuid4().hex}")

    def _item(self, block: ContentBlock, status: str) -> Document:
        item: Document = {"id": self._id_of(block), "status": status}
        if block.is_call:
            said = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
            return {"type": "function_call", **item, **said}
        part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        return {"type": "message", **item, "role": "assistant", "content": [part]}

    def _response(self, status: str) -> Document:
        given = self.body.model_dump()
        echoed = {name: given.get(name) for name in _ECHOED}
        several = echoed["parallel_tool_calls"]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            **echoed,
            "tools": echoed["tools"] or [],
            "tool_choice": echoed["tool_choice"] or "auto",
            "parallel_tool_calls": True if several is None else several,
            "text": echoed["text"] or {"format": {"type": "text"}},
            "metadata": echoed["metadata"] or {},
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None,
        }


def _kind(block: ContentBlock) -> str:
    return "function_call_arguments" if block.is_call else "output_text"


def _usage(answer: BlockAnswer) -> Document:
    found = usage(answer.request)
    return {
        "input_tokens": found["prompt_tokens"],
        "input_tokens_details": found["prompt_tokens_details"],
        "output_tokens": found["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found["total_tokens"],
    }
