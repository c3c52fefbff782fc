"""Ollama's routes, by which editors find models and talk with them, and LM Studio's list of them.

A request is read as a chat request, or continues a text where it is `raw` or has a `suffix`; the answer is one object,
or lines of JSON, which is the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from forerun.server.api.embeddings import EmbeddingRequest, vector_of_each
from forerun.server.api.openai import CompletionRequest, continued
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.content_parts import BlocksBody, BlockWriter, ContentBlock, check_shown, reply
from forerun.server.errors import ApiError, invalid, must_be
from forerun.server.http import LINES, JsonResponse, RowsResponse, to_json
from forerun.server.models import AllModels, FromBody, ServedModels
from forerun.server.schema import RequestBody
from forerun.server.service import Service
from forerun.server.sleep import seconds_of
from forerun.server.writer import Document, usage
from forerun.text.parsing.parser import PlainParser

router = APIRouter(route_class=JsonRoute, include_in_schema=False)
lists = APIRouter(include_in_schema=False)
"""Routes without a body."""
VERSION = "0.13.5"
"""Of Ollama's API that these routes are like."""
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


class ShowRequest(RequestBody):
    """The name of a model."""

    name: str | None = None
    """Its older field."""
    verbose: bool = False
    """Say what the tokens are, too."""


@lists.get("/api/version")
async def version() -> Response:
    """Tell which Ollama this is like."""
    return JsonResponse({"version": VERSION})


@lists.get("/api/tags")
async def tags(served: AllModels) -> Response:
    """List what is served."""
    return JsonResponse({"models": listed(served)})


@lists.get("/api/ps")
async def loaded(served: AllModels) -> Response:
    """List the loaded models, and until when each stays without requests."""
    until = {name: served.clock.until(one) for one in served.services for name in one.names}
    found = listed(served, only_loaded=True)
    more = ({"expires_at": until[each["name"]], "size_vram": 0} for each in found)
    return JsonResponse({"models": [each | one for each, one in zip(found, more, strict=True)]})


@router.post("/api/show")
async def show(served: AllModels, request: JsonRequest, body: ShowRequest) -> Response:
    """Say what a model is and can do, also of one that is not loaded."""
    service = served.named(body.model or body.name)
    llm, max_len = service.worker.llm, served.max_len(service)
    config = None if llm is None else llm.model.config
    family = "unknown" if config is None else config.family
    facts: Document = {"general.architecture": family, f"{family}.context_length": max_len}
    if config is not None:
        facts[f"{family}.embedding_length"] = config.hidden_size
        facts[f"{family}.block_count"] = config.num_layers
    template = "" if llm is None else llm.tokenizer.chat_template or ""
    entry = _entry(service, service.names[0])
    document = entry | {
        "template": template,
        "model_info": facts,
        "parameters": "",
        "modelfile": "",
    }
    if not body.verbose or llm is None:
        return JsonResponse(document)
    tokenizer = llm.tokenizer

    def written() -> Response:
        ids = range(tokenizer.vocab_size)
        facts["tokenizer.ggml.tokens"] = [tokenizer.text_of(token) for token in ids]
        return JsonResponse(document)

    return await service.encode(written, tokenizer.vocab_size)


@lists.get("/api/v0/models")
async def lm_studio_models(served: AllModels) -> Response:
    """List what is served, as LM Studio does."""
    data = [
        {
            "id": name,
            "object": "model",
            "type": "llm",
            "state": "loaded" if service.is_loaded else "not-loaded",
            "max_context_length": served.max_len(service),
            "capabilities": ["tool_use"],
        }
        for service in served.services
        for name in service.names
    ]
    return JsonResponse({"object": "list", "data": data})


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


def listed(served: ServedModels, *, only_loaded: bool = False) -> list[Document]:
    """Describe the models that are served."""
    return [
        _entry(service, name)
        for service in served.services
        if service.is_loaded or not only_loaded
        for name in service.names
    ]


def _entry(service: Service, name: str) -> Document:
    """Describe a model as far as it is known without loading it."""
    llm, can = service.worker.llm, ["completion", "tools"]
    if llm is not None:
        can += ["insert"] * (llm.tokenizer.fill_in is not None)
        can += ["thinking"] * (service.form.thinking is not None or service.form.is_harmony)
    family = "unknown" if llm is None else llm.model.config.family
    return {
        "name": name,
        "model": name,
        "modified_at": _time(service.created),
        "size": 0 if llm is None else llm.model.nbytes(),
        "digest": "",
        "details": {
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": "",  # not known, but Zed reads no list without both
            "quantization_level": "",
        },
        "capabilities": can + ["embedding"] * service.config.embeddings,
    }


class UnloadRequest(RequestBody):
    """The name of a model to unload."""

    only_unloads: ClassVar = True


@router.post("/models/unload")
async def unload(service: FromBody, request: JsonRequest, body: UnloadRequest) -> Response:
    """Unload a model, as llama-server does."""
    return JsonResponse({"success": await request.app.state.served.unload(service)})


def _keep(service: Service, request: JsonRequest, body: OllamaRequest) -> None:
    """Let the model stay as long as the client says. Raises ApiError."""
    if not body.only_unloads:
        request.app.state.served.clock.keep(service, seconds_of(body.keep_alive))


async def _only_loaded(service: Service, request: JsonRequest, body: OllamaRequest) -> Response:
    said: Document = {"message": {"role": "assistant", "content": ""}}
    content = said if isinstance(body, OllamaChat) else {"response": ""}
    head = {"model": service.name(body.model), "created_at": _time()}
    is_gone = body.only_unloads and await request.app.state.served.unload(service)
    reason = "unload" if is_gone else "load"
    return JsonResponse({**head, **content, "done": True, "done_reason": reason})


def _time(seconds: float | None = None) -> str:
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat().replace("+00:00", "Z")


class OllamaWriter(BlockWriter):
    """Write lines of JSON and the document."""

    media_type, ping = LINES, b""

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
        return {"model": self.model, "created_at": _time(), **content, "done": False}

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
