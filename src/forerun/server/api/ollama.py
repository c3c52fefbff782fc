"""Ollama's routes that answer: chats, texts and vectors.

A request is read as a chat request, or continues a text where it is `raw` or has a `suffix`; the answer is one object,
or lines of JSON, which is the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from forerun.server.api.embeddings import EmbeddingRequest, vector_of_each
from forerun.server.api.ollama_models import timestamp
from forerun.server.api.openai import CompletionRequest, continued
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.content_parts import BlocksBody, BlockWriter, ContentBlock, check_shown, reply
from forerun.server.errors import ApiError, invalid, must_be
from forerun.server.http import LINES, JsonResponse, RowsResponse, to_json
from forerun.server.models import FromBody
from forerun.server.service import Service
from forerun.server.sleep import seconds_of
from forerun.server.writer import Document, usage
from forerun.text.parsing.parser import PlainParser

router = APIRouter(route_class=JsonRoute, include_in_schema=False)
_NS = 1e6
"""Nanoseconds of a millisecond."""


class OllamaRequest(BlocksBody):
    """What both routes take."""

    stream: bool = True
    options: dict[str, Any] | None = None
    """Sampling, by Ollama's names."""
    format: str | dict[str, Any] | None = None
    """`json`, or a schema."""
    think: bool | str | None = None
    keep_alive: Any = None
    """How long the model stays loaded without requests; left out: the server's option."""

    dialect_names: ClassVar = {"response_format": "format"}

    @property
    def only_unloads(self) -> bool:
        """Whether nothing is asked, and the model is not to be kept."""
        return seconds_of(self.keep_alive) == 0 and not self.asks

    @property
    def asks(self) -> bool:
        """Whether there is something to answer."""
        raise NotImplementedError

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        fields = {
            **(self.model_extra or {}),
            **(self.options or {}),
            "model": self.model,
            "stream": self.stream,
        }
        form = self.format or None
        if form is not None:
            if isinstance(form, str) and form != "json":
                raise must_be("format", '"json" or a JSON schema', form)
            schema = {"schema": form} if isinstance(form, dict) else {}
            fields["response_format"] = {
                "type": "json_schema" if schema else "json_object",
                **schema,
            }
        name = "reasoning_effort" if isinstance(self.think, str) else "enable_thinking"
        return fields | {name: self.think, "tools": self.tools, "messages": self.turns()}

    def turns(self) -> list[dict[str, Any]]:
        """Return the conversation."""
        raise NotImplementedError


class OllamaChat(OllamaRequest):
    """A conversation to answer."""

    messages: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def asks(self) -> bool:
        """Whether there is a conversation."""
        return bool(self.messages)

    def turns(self) -> list[dict[str, Any]]:
        """Return the conversation. Raises ApiError for pictures."""
        if any(one.get("images") for one in self.messages):
            raise invalid("this server does not accept images: leave them out", "messages")
        return self.messages


class OllamaGenerate(OllamaRequest):
    """A question to answer, or a text to continue as it is."""

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    raw: bool = False
    context: list[int] | None = None
    """Tokens of the turns before, as an answer gave them."""
    images: list[Any] | None = None

    def turns(self) -> list[dict[str, Any]]:
        """Return the conversation. Raises ApiError for pictures."""
        if self.images:
            raise invalid("this server does not accept images: leave them out", "images")
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    @property
    def asks(self) -> bool:
        """Whether there is a question."""
        return bool(self.prompt)

    @property
    def earlier(self) -> Sequence[int]:
        """The tokens before the question."""
        return self.context or ()

    def as_completion(self) -> dict[str, Any]:
        """Write the fields of the completion request that says the same."""
        chat = {name: value for name, value in self.as_chat().items() if name not in _OF_CHATS}
        return {**chat, "prompt": self.prompt, "suffix": self.suffix}


_OF_CHATS = ("messages", "tools", "enable_thinking", "reasoning_effort")


@router.post("/api/chat")
async def chat(service: FromBody, request: JsonRequest, body: OllamaChat) -> Response:
    """Answer a conversation; none only loads the model."""
    _keep(service, request, body)
    if not body.asks:
        return await _only_loaded(service, request, body)
    return await reply(service, request, body, OllamaWriter)


@router.post("/api/generate")
async def generate(service: FromBody, request: JsonRequest, body: OllamaGenerate) -> Response:
    """Answer a question, or continue a text; none only loads the model."""
    _keep(service, request, body)
    if not body.asks:
        return await _only_loaded(service, request, body)
    if not body.raw and not body.suffix:
        return await reply(service, request, body, OllamaWriter)
    completion = CompletionRequest.model_validate(body.as_completion())
    if completion.max_tokens is None:  # type: ignore[attr-defined]  # a field of SamplingParams
        completion.max_tokens = -1  # type: ignore[attr-defined]
    check_shown(completion)
    running = await continued(service, request, completion)
    writer = OllamaWriter(service, running, body, PlainParser)
    return await writer.reply(request, stream=body.stream)


class EmbedRequest(EmbeddingRequest):
    """Texts of which vectors are wanted, cut unless the client says otherwise."""

    truncate: bool | str = True
    prompt: str | None = None
    """The older route's name of a text."""


@router.post("/api/embeddings")
async def older_embed(service: FromBody, request: JsonRequest, body: EmbedRequest) -> Response:
    """Compute the vector of a text."""
    body.input = body.prompt if body.input is None else body.input
    vectors, _ = await vector_of_each(service, request, body)
    return JsonResponse({"embedding": next(vectors).tolist()})


@router.post("/api/embed")
async def embed(service: FromBody, request: JsonRequest, body: EmbedRequest) -> Response:
    """Compute vectors of texts."""
    vectors, num_tokens = await vector_of_each(service, request, body)
    found = (row.tolist() for row in vectors)
    name = service.name(body.model)
    return RowsResponse({"model": name, "embeddings": found, "prompt_eval_count": num_tokens})


def _keep(service: Service, request: JsonRequest, body: OllamaRequest) -> None:
    """Let the model stay as long as the client says. Raises ApiError."""
    if not body.only_unloads:
        request.app.state.served.clock.keep(service, seconds_of(body.keep_alive))


async def _only_loaded(service: Service, request: JsonRequest, body: OllamaRequest) -> Response:
    said: Document = {"message": {"role": "assistant", "content": ""}}
    content = said if isinstance(body, OllamaChat) else {"response": ""}
    head = {"model": service.name(body.model), "created_at": timestamp()}
    is_gone = body.only_unloads and await request.app.state.served.unload(service)
    reason = "unload" if is_gone else "load"
    return JsonResponse({**head, **content, "done": True, "done_reason": reason})


class OllamaWriter(BlockWriter):
    """Write lines of JSON and the document."""

    media_type = LINES

    def final(self) -> Document:
        """Write the whole answer."""
        texts = {kind: self._text(kind) for kind in ("text", "reasoning")}
        calls = [call for one in self.blocks if one.is_call and (call := _call(one))]
        return self._chunk(texts["text"], texts["reasoning"], calls) | self._figures()

    def open(self, block: ContentBlock) -> Iterator[Document]:
        """Write nothing: there are no blocks."""
        yield from ()

    def grow(self, block: ContentBlock, text: str) -> Iterator[Document]:
        """Write more text; a call is written when it is whole."""
        if not block.is_call:
            yield self._chunk(*(("", text) if block.kind == "reasoning" else (text, "")))

    def close(self, block: ContentBlock) -> Iterator[Document]:
        """Write a call."""
        if block.is_call and (call := _call(block)):
            yield self._chunk("", "", [call])

    def end(self) -> Iterator[Document]:
        """Write the figures."""
        yield self._chunk("", "") | self._figures()

    def fail(self, error: ApiError) -> Document:
        """Write the error as Ollama does."""
        return error.ollama()

    def keep_alive(self) -> bytes:
        """Write a line without text: there are no comments."""
        return self.frame(self._chunk("", ""))

    def frame(self, document: Document) -> bytes:
        """Write a line."""
        return to_json(document) + b"\n"

    def _text(self, kind: str) -> str:
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def _chunk(self, text: str, thought: str, calls: list[Document] | None = None) -> Document:
        content: Document = {"thinking": thought} if thought else {}
        if isinstance(self.body, OllamaChat):
            tools = {"tool_calls": calls} if calls else {}
            content = {"message": {"role": "assistant", "content": text, **content, **tools}}
        else:
            content["response"] = text
        return {"model": self.model, "created_at": timestamp(), **content, "done": False}

    def _figures(self) -> Document:
        counts, timings = usage(self.running), self.timings()
        more: Document = {}
        if isinstance(self.body, OllamaGenerate) and not self.body.raw:
            more["context"] = [*self.running.runs[0].seq.tokens]
        read_ns, written_ns = (int(timings[name] * _NS) for name in ("prompt_ms", "predicted_ms"))
        return {
            "done": True,
            "done_reason": "stop" if self.reason is None else self.reason.value,
            "total_duration": read_ns + written_ns,
            "load_duration": 0,
            "prompt_eval_count": counts["prompt_tokens"],
            "prompt_eval_duration": read_ns,
            "eval_count": counts["completion_tokens"],
            "eval_duration": written_ns,
            **more,
        }


def _call(block: ContentBlock) -> Document | None:
    """Write a call; None for one that was cut."""
    try:
        given = json.loads(block.text or "{}", strict=False)
    except ValueError:
        return None
    arguments = given if isinstance(given, Mapping) else {}
    return {"id": block.call_id, "function": {"name": block.name, "arguments": arguments}}
