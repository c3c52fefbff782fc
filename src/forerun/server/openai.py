"""OpenAI's completions and chat completions, and how a conversation becomes a request of the engine."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.config import DEFAULT_MAX_TOKENS
from forerun.server.dependencies import FromBody
from forerun.server.errors import ApiError
from forerun.server.forms import check_depth
from forerun.server.openai_writer import NewParser, OpenAIWriter
from forerun.server.openapi import COUNT, OBJECT, TEXT, Schema, answers, list_of, object_of
from forerun.server.prompts import check_counted
from forerun.server.schema import ChatRequest, CompletionRequest, check_roles
from forerun.server.service import Service
from forerun.server.tools import Toolbox
from forerun.server.worker import AsyncRequest
from forerun.text.answers.forms import form_of
from forerun.text.prompt import Encoded

router = APIRouter(route_class=JsonRoute)


def _completion(kind: str, **choice: Schema) -> Schema:
    """Describe a document with `choices`."""
    return object_of(
        id=TEXT,
        object={"const": kind},
        created=COUNT,
        model=TEXT,
        choices=list_of(object_of(**choice, index=COUNT, finish_reason=TEXT)),
        usage=object_of(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT),
        timings=OBJECT,
    )


@router.post(
    "/v1/completions", responses=answers(_completion("text_completion", text=TEXT), streams=True)
)
async def completions(service: FromBody, request: JsonRequest, body: CompletionRequest) -> Response:
    """Continue a text."""
    service.name(body.model)
    if body.echo and body.stream and body.logprobs is not None:
        raise ApiError(400, "echo with logprobs is not streamed: leave out stream", param="stream")
    params = service.params(body)
    bos = None if body.add_special_tokens else False
    given = body.prompts()
    hole = service.fill_in("suffix") if body.suffix else None
    if hole is not None and not all(isinstance(one, str) for one in given):
        raise ApiError(400, "suffix needs prompts as text", param="suffix")

    def encode(one: str | list[int]) -> Encoded:
        if not isinstance(one, str):
            return Encoded(one)
        if hole is None:
            return service.read_text(one, "prompt", bos=bos)
        return Encoded(service.read_hole(hole, ("prompt", one), ("suffix", body.suffix or "")), one)

    running = await service.submit(
        lambda: service.encode(lambda: [encode(one) for one in given], request.nbytes),
        len(given),
        params,
        field="prompt",
        form_field=body.form_field,
        stream=body.stream,
        with_progress=body.return_progress,
    )
    return await OpenAIWriter(service, running, body).reply(request, stream=body.stream)


@router.post(
    "/v1/chat/completions",
    responses=answers(_completion("chat.completion", message=OBJECT), streams=True),
)
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(service: FromBody, request: JsonRequest, body: ChatRequest) -> Response:
    """Answer a conversation."""
    service.name(body.model)
    running, new_parser = await submit(service, request, body)
    writer = OpenAIWriter(service, running, body, new_parser)
    return await writer.reply(request, stream=body.stream)


async def submit(
    service: Service, request: JsonRequest, body: ChatRequest
) -> tuple[AsyncRequest, NewParser]:
    """Hand a conversation to the engine; also return what makes a parser of the answer."""
    params = service.params(body, max_tokens=DEFAULT_MAX_TOKENS)
    toolbox = _toolbox(service, body)
    params.structured_outputs = toolbox.form(params.structured_outputs)
    form = form_of(service.llm().tokenizer.chat_template)
    if form.has_special_marks:
        params.skip_special_tokens = False

    async def read() -> list[Encoded]:
        text = await service.render(lambda: _rendered(service, body, toolbox))
        nbytes = max(len(text), request.nbytes)
        return await service.encode(
            lambda: [service.read_text(text, "messages", bos=False)], nbytes
        )

    running = await service.submit(
        read,
        1,
        params,
        field="messages",
        form_field=body.form_field,
        stream=body.stream,
        with_progress=body.return_progress,
    )
    return running, partial(
        form.parser,
        running.handles[0].prompt or "",
        with_calls=bool(toolbox.tools),
        with_reasoning=body.reasoning_format != "none",
        is_forced=bool(toolbox.required),
    )


async def count(service: Service, request: JsonRequest, body: ChatRequest) -> int:
    """Count the tokens of a conversation. Raises ApiError."""
    text = await rendered(service, body)

    def counted() -> int:
        check_counted(text, "messages")
        return len(service.llm().tokenizer.encode(text, bos=False))

    return await service.encode(counted, max(len(text), request.nbytes))


async def rendered(service: Service, body: ChatRequest) -> str:
    """Write a conversation as the model reads it. Raises ApiError, RequestError."""
    service.name(body.model)
    toolbox = _toolbox(service, body)
    return await service.render(lambda: _rendered(service, body, toolbox))


def _toolbox(service: Service, body: ChatRequest) -> Toolbox:
    check_depth(body.tools, "tools", service.config)
    return Toolbox.of(body.tools, body.tool_choice, body.parallel_tool_calls)


def _rendered(service: Service, body: ChatRequest, toolbox: Toolbox) -> str:
    """Write a conversation as the model reads it, with these tools."""
    given = [_with_system_role(message) for message in body.messages]
    turns, tools = toolbox.prepare(given, reads_tools=service.template.reads_tools)
    check_roles(given)
    variables = service.template_kwargs | (body.chat_template_kwargs or {})
    return service.template.render(turns, body.add_generation_prompt, tools, variables)


def _with_system_role(message: dict[str, Any]) -> dict[str, Any]:
    """Call a `developer` the system, as templates do."""
    return message | {"role": "system"} if message.get("role") == "developer" else message
