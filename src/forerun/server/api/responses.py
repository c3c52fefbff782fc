"""OpenAI's responses: `POST /v1/responses`, text and tools; of what was answered the last items alone are kept.

A request is read as a chat request; the answer is a list of items.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fastapi import APIRouter
from starlette.responses import Response

from forerun.compat.ignored_fields import note
from forerun.compat.tools import ALLOWED
from forerun.server.api.openai import check_roles
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.content_parts import BlocksBody, BlockWriter, ContentBlock, one_system, reply
from forerun.server.errors import ApiError, must_be
from forerun.server.items import is_reference
from forerun.server.models import FromBody
from forerun.server.openapi import answers
from forerun.server.service import Service
from forerun.server.writer import Document, usage

router = APIRouter(route_class=JsonRoute)
_KINDS = {
    "text": ("msg", "output_text"),
    "reasoning": ("rs", "reasoning_text"),
    "call": ("fc", "function_call_arguments"),
}
"""By kind of block: the prefix of an item's id, and what its events are called."""
_EARLIER: Mapping[str, Any] = {"role": "assistant", "content": ""}
_OF_OTHERS = ("_call", "_call_output", "_call_response", "_list_tools")
"""How the types of items end that the client's API has and this one does not: of a search, a shell, an interpreter."""
_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "temperature", "top_p"),
    *("tools", "tool_choice", "parallel_tool_calls", "text"),
)
"""Fields of the request that the response repeats."""


class ResponsesRequest(BlocksBody):
    """A conversation as a list of items. It comes whole with every request; the last answers' items also by id."""

    input: str | list[dict[str, Any]]
    """The user's text, or the items so far: messages, function calls and their outputs."""
    instructions: str | None = None
    """A system message, before those of the input."""
    text: dict[str, Any] | None = None
    """`format`: the form of the answer."""
    store: bool | None = None
    """False: the answer's items are not kept, and cannot be referred to."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""

    dialect_names: ClassVar = {
        "messages": "input",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        fields = self.but({"input", "instructions", "store", "text", "tools", "tool_choice"})
        fields["messages"] = _messages(self)
        if self.text is not None:
            fields["response_format"] = _response_format(self.text)
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in _flat(self.tools)]
        choice = self.tool_choice
        if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
            choice = {"type": ALLOWED, ALLOWED: choice}
        elif isinstance(choice, Mapping) and "name" in choice:
            choice = {"type": "function", "function": {"name": choice["name"]}}
        fields["tool_choice"] = choice
        return fields


@router.post("/v1/responses", responses=answers(streams=True))
@router.post("/responses", include_in_schema=False)
async def responses(service: FromBody, request: JsonRequest, body: ResponsesRequest) -> Response:
    """Answer in OpenAI's newer form."""
    if not isinstance(body.input, str):
        body.input = service.items.resolved(body.input)
    return await reply(service, request, body, ResponsesWriter)


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    # what is referred to is put in before it is answered
    given = [_EARLIER if is_reference(item) else item for item in body.input]
    check_roles([item for item in given if item.get("type", "message") == "message"], "input")
    reasoning = ""  # stands before the answer or the call that it led to
    for number, item in enumerate(given):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind in ("function_call", "custom_tool_call"):
            if reasoning or not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **result})
            continue
        elif kind == "reasoning":
            reasoning = _reasoning(item)
            continue
        else:
            _check_known(number, kind)
            continue
        if reasoning and messages[-1]["role"] == "assistant":  # no other message has any
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    return one_system(messages)


def _check_known(number: int, kind: object) -> None:
    """Note an item that only others than the client write. Raises ApiError for one that is none."""
    if not (isinstance(kind, str) and kind.endswith(_OF_OTHERS)):
        what = "message, reasoning, function_call or function_call_output"
        raise must_be(f"input[{number}].type", what, kind, "input")
    note(f"input of type {kind}", "only the client's own calls and results are known here")


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Write an item as a chat's call; that of a custom tool has one text."""
    is_custom = item.get("type") == "custom_tool_call"
    given = {"input": item.get("input")} if is_custom else item.get("arguments")
    function = {"name": item.get("name"), "arguments": given}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _reasoning(item: Mapping[str, Any]) -> str:
    """Return the text of an item of reasoning, or its summary's; nothing of one that is encrypted."""
    parts = item.get("content") or item.get("summary") or []
    parts = parts if isinstance(parts, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _response_format(text: Mapping[str, Any]) -> dict[str, Any]:
    given = text.get("format") or {"type": "text"}
    if not isinstance(given, Mapping):
        raise must_be("text.format", "an object", given, "text")
    if given.get("type") != "json_schema":
        return {**given}
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema")}}


def _flat(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools, those of a namespace one by one with its name as `namespace`."""
    for tool in tools:
        inner = tool.get("tools") if tool.get("type") == "namespace" else None
        if not isinstance(inner, list):
            yield tool
            continue
        yield from (
            {"namespace": tool.get("name"), **each} for each in inner if isinstance(each, Mapping)
        )


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the fields beside the type into an object of their own, as chat requests have them."""
    if tool.get("type") != "function":
        return tool
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function, "strict": tool.get("strict")}


class ResponsesWriter(BlockWriter):
    """Write the events and the document."""

    prefix = "resp"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        service: Service = given[0]
        self._items = service.items
        self._numbers = itertools.count()
        self._tools = {tool.get("name"): tool for tool in _flat(self.body.tools or ())}

    def final(self) -> Document:
        """Write the response."""
        document = self._response("incomplete" if self.is_cut else "completed")
        document["output"] = [self._item(block, self._status(block)) for block in self.blocks]
        if self.is_cut:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
        if getattr(self.body, "store", None) is not False:
            self._items.keep(document["output"])
        document["timings"] = self.timings()
        return document | {"usage": self._usage()}

    def _usage(self) -> Document:
        """Count tokens; those of reasoning are what its text would be encoded as."""
        counts, encode = usage(self.running), self.llm.tokenizer.encode
        texts = [block.text for block in self.blocks if block.kind == "reasoning"]
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "total_tokens": counts["total_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": sum(len(encode(text, bos=False)) for text in texts)
            },
        }

    def begin(self) -> Iterator[Document]:
        """Write the response without its output."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def keep_alive(self) -> bytes:
        """Write an event: Codex gives up on a stream without any, whatever comments it has."""
        return self.frame(
            self._event("response.in_progress", response=self._response("in_progress"))
        )

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Write an item, and for a text its only part."""
        item, index = self._item(block, "in_progress"), block.index
        empty: Document = item if block.is_call else item | {"content": []}
        yield self._event("response.output_item.added", item=empty, output_index=index)
        if block.kind == "text":
            where = {"output_index": index, "item_id": item["id"], "content_index": 0}
            part = item["content"][0]
            yield self._event("response.content_part.added", part=part, **where)

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Write a delta."""
        if not self._is_custom(block):  # their text stands in JSON
            event = f"response.{_KINDS[block.kind][1]}.delta"
            yield self._event(event, delta=text, **self._where(block))

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """Write the whole text, part and item once more."""
        item, where = self._item(block, self._status(block)), self._where(block)
        if self._is_custom(block):
            name = "response.custom_tool_call_input"
            yield self._event(f"{name}.delta", delta=item["input"], **where)
            yield self._event(f"{name}.done", input=item["input"], **where)
        else:
            text = (
                {"arguments": block.text, "name": block.name}
                if block.is_call
                else {"text": block.text}
            )
            yield self._event(f"response.{_KINDS[block.kind][1]}.done", **text, **where)
        if block.kind == "text":
            where.pop("logprobs")
            yield self._event("response.content_part.done", part=item["content"][0], **where)
        yield self._event("response.output_item.done", item=item, output_index=block.index)

    def end(self) -> Iterator[Document]:
        """Write the whole response."""
        document = self.final()
        yield self._event(f"response.{document['status']}", response=document)

    def fail(self, error: ApiError) -> Document:
        """Write the error as an event."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _status(self, block: ContentBlock) -> str:
        """Return how a block ended."""
        return "incomplete" if self.is_cut and block is self.blocks[-1] else "completed"

    def _is_custom(self, block: ContentBlock) -> bool:
        return block.is_call and self._tools.get(block.name, {}).get("type") == "custom"

    def _event(self, kind: str, **fields: object) -> Document:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _where(self, block: ContentBlock) -> Document:
        where: Document = {"item_id": _id(block), "output_index": block.index}
        if not block.is_call:
            where["content_index"] = 0
        return where | {"logprobs": []} if block.kind == "text" else where

    def _item(self, block: ContentBlock, status: str) -> Document:
        item: Document = {"id": _id(block), "status": status}
        if block.is_call:
            call: Document = {"call_id": block.call_id, "name": block.name}
            if space := self._tools.get(block.name, {}).get("namespace"):
                call["namespace"] = space
            if self._is_custom(block):
                return {"type": "custom_tool_call", **item, **call, "input": _input(block.text)}
            return {"type": "function_call", **item, **call, "arguments": block.text}
        if block.kind == "reasoning":
            text = {"type": "reasoning_text", "text": block.text}
            return {"type": "reasoning", **item, "summary": [], "content": [text]}
        part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        return {"type": "message", **item, "role": "assistant", "content": [part]}

    def _response(self, status: str) -> Document:
        echoed = {name: getattr(self.body, name, None) for name in _ECHOED}
        several = echoed["parallel_tool_calls"]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
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


def _input(arguments: str) -> str:
    """Find the text that a custom tool gets; all that was written where it is not there."""
    try:
        given = json.loads(arguments or '{"input": ""}', strict=False)
    except ValueError:  # it was cut
        return arguments
    return str(given.get("input", arguments)) if isinstance(given, dict) else arguments


def _id(block: ContentBlock) -> str:
    return f"{_KINDS[block.kind][0]}_{block.key}"
