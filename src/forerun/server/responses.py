"""OpenAI's responses: `POST /v1/responses`, text and tools, without stored state.

A request is read as a chat request; the answer is a list of items.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from fastapi import APIRouter
from starlette.responses import Response

from forerun.core.errors import short_repr
from forerun.core.types import FinishReason
from forerun.server.async_request import AsyncRequest
from forerun.server.blocks import BlockWriter, ContentBlock, one_system, reply
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import ApiError, invalid
from forerun.server.fleet import FromBody
from forerun.server.openai import check_roles
from forerun.server.openapi import COUNT, TEXT, answers, list_of, object_of
from forerun.server.schema import OpenBody
from forerun.server.writer import Document, usage

router = APIRouter(route_class=JsonRoute)
_RESPONSE = object_of(
    id=TEXT,
    object={"const": "response"},
    status={"enum": ["completed", "incomplete"]},
    output=list_of(object_of(type=TEXT, id=TEXT)),
    usage=object_of(input_tokens=COUNT, output_tokens=COUNT),
)
_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "temperature", "top_p"),
    *("tools", "tool_choice", "parallel_tool_calls", "text"),
)
"""Fields of the request that the response repeats."""


class ResponsesRequest(OpenBody):
    """A conversation as a list of items. Nothing is stored: all of it comes with every request."""

    input: str | list[dict[str, Any]]
    """The user's text, or the items so far: messages, function calls and their outputs."""
    instructions: str | None = None
    """A system message, before those of the input."""
    text: dict[str, Any] | None = None
    """`format`: the form of the answer."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""

    theirs: ClassVar = {
        "messages": "input",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        own = {"input", "instructions", "text", "tools", "tool_choice"}
        fields = {name: value for name, value in self.model_dump().items() if name not in own}
        fields["messages"] = _messages(self)
        if self.text is not None:
            fields["response_format"] = _response_format(self.text)
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
        choice = self.tool_choice
        if isinstance(choice, Mapping) and "name" in choice:
            choice = {"type": "function", "function": {"name": choice["name"]}}
        fields["tool_choice"] = choice
        return fields


@router.post("/v1/responses", responses=answers(_RESPONSE, streams=True))
@router.post("/responses", include_in_schema=False)
async def responses(service: FromBody, request: JsonRequest, body: ResponsesRequest) -> Response:
    """Answer in OpenAI's newer form; nothing is stored."""
    return await reply(service, request, body, ResponsesWriter)


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    thought = ""  # before the answer or the call that it led to
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    check_roles([item for item in body.input if item.get("type", "message") == "message"], "input")
    for number, item in enumerate(body.input):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
            thought = _with_thought(messages[-1], thought)
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if thought or not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
                thought = _with_thought(messages[-1], thought)
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **result})
        elif kind == "reasoning":
            thought = _thought(item)
        else:
            what = "message, reasoning, function_call or function_call_output"
            message = f"input[{number}].type must be {what}, got {short_repr(kind)}"
            raise invalid(message, "input")
    return one_system(messages)


def _thought(item: Mapping[str, Any]) -> str:
    """Return the text of an item of reasoning, or its summary's; nothing of one that is encrypted."""
    parts = item.get("content") or item.get("summary") or []
    parts = parts if isinstance(parts, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _with_thought(message: dict[str, Any], thought: str) -> str:
    """Give an answer the thought before it, as chat templates read it; no other message has thoughts. Return none."""
    if thought and message["role"] == "assistant":
        message["reasoning_content"] = thought
    return ""


def _response_format(text: Mapping[str, Any]) -> dict[str, Any]:
    given = text.get("format") or {"type": "text"}
    if not isinstance(given, Mapping):
        raise invalid(f"text.format must be an object, got {short_repr(given)}", "text")
    if given.get("type") != "json_schema":
        return {**given}
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema")}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Move the fields beside the type into an object of their own, as chat requests have them."""
    known = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": tool.get("type"), "function": known, "strict": tool.get("strict")}


class ResponsesWriter(BlockWriter):
    """Write the events and the document."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._number = -1
        self._ids: dict[int, str] = {}

    def whole(self) -> Document:
        """Write the response."""
        is_cut = self.reason is FinishReason.LENGTH
        document = self._response("incomplete" if is_cut else "completed")
        document["output"] = [self._item(block, "completed") for block in self.blocks]
        if is_cut:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
            if document["output"]:
                document["output"][-1]["status"] = "incomplete"
        document["timings"] = self.timings()
        return document | {"usage": self._usage()}

    def _usage(self) -> Document:
        """Count tokens; those of a thought are what its text would be encoded as."""
        found, encode = _usage(self.running), self.llm.tokenizer.encode
        thoughts = [block.text for block in self.blocks if block.kind == "reasoning"]
        spent = sum(len(encode(text, bos=False)) for text in thoughts)
        return found | {"output_tokens_details": {"reasoning_tokens": spent}}

    def begin(self) -> Iterator[Document]:
        """Write the response without its output."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Write an item, and for a text its only part."""
        item = self._item(block, "in_progress")
        where = {"output_index": block.index}
        if block.is_call:
            yield self._event("response.output_item.added", item=item, **where)
            return
        part = item["content"].pop()
        yield self._event("response.output_item.added", item=item, **where)
        if block.kind == "reasoning":
            return
        where |= {"item_id": item["id"], "content_index": 0}
        yield self._event("response.content_part.added", part=part, **where)

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Write a delta."""
        yield self._event(f"response.{_kind(block)}.delta", delta=text, **self._where(block))

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """Write the whole text, part and item once more."""
        item, where = self._item(block, "completed"), self._where(block)
        said = (
            {"arguments": block.text, "name": block.name} if block.is_call else {"text": block.text}
        )
        yield self._event(f"response.{_kind(block)}.done", **said, **where)
        if block.kind == "text":
            where.pop("logprobs")
            yield self._event("response.content_part.done", part=item["content"][0], **where)
        yield self._event("response.output_item.done", item=item, output_index=block.index)

    def end(self) -> Iterator[Document]:
        """Write the whole response."""
        document = self.whole()
        yield self._event(f"response.{document['status']}", response=document)

    def fail(self, error: ApiError) -> Document:
        """Write an error."""
        said = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", **said)

    def _event(self, kind: str, **fields: object) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _where(self, block: ContentBlock) -> Document:
        where: Document = {"item_id": self._id_of(block), "output_index": block.index}
        if not block.is_call:
            where["content_index"] = 0
        return where | {"logprobs": []} if block.kind == "text" else where

    def _id_of(self, block: ContentBlock) -> str:
        prefix = {"call": "fc", "reasoning": "rs", "text": "msg"}[block.kind]
        return self._ids.setdefault(block.index, f"{prefix}_{uuid.uuid4().hex}")

    def _item(self, block: ContentBlock, status: str) -> Document:
        item: Document = {"id": self._id_of(block), "status": status}
        if block.is_call:
            said = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
            return {"type": "function_call", **item, **said}
        if block.kind == "reasoning":
            thought = {"type": "reasoning_text", "text": block.text}
            return {"type": "reasoning", **item, "summary": [], "content": [thought]}
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
    kinds = {"call": "function_call_arguments", "reasoning": "reasoning_text"}
    return kinds.get(block.kind, "output_text")


def _usage(running: AsyncRequest) -> Document:
    found = usage(running)
    return {
        "input_tokens": found["prompt_tokens"],
        "input_tokens_details": {**found["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": found["completion_tokens"],
        "total_tokens": found["total_tokens"],
    }
