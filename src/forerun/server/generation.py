"""The routes that answer: OpenAI's completions, chat completions and responses, Anthropic's messages.

All become prompts and `SamplingParams`; they differ in how requests are read and answers written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import forerun
from forerun.server import messages as anthropic
from forerun.server import responses as openai
from forerun.server.answers import CHAT, COMPLETION, DocumentHead, Words
from forerun.server.blocks import BlockWriter, Dialect
from forerun.server.config import DEFAULT_MAX_TOKENS
from forerun.server.conversations import check_roles
from forerun.server.errors import ApiError, renamed
from forerun.server.filling import filled, tokens_of
from forerun.server.forms import check_depth
from forerun.server.http import EventStream, answer, body_nbytes, watched
from forerun.server.parts import Reader
from forerun.server.schema import (
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    MessagesRequest,
    ResponsesRequest,
    StreamOptions,
    read,
)
from forerun.server.service import Service
from forerun.server.texts import check_counted
from forerun.server.tools import Toolbox
from forerun.server.worker import AsyncRequest
from forerun.server.writer import Writer
from forerun.text.prompt import Encoded


async def completions(service: Service, request: Request) -> Response:
    """Continue a text."""
    body, typed = await service.read(request, CompletionRequest)
    name = service.name(body.model)
    if body.echo and body.stream and body.logprobs is not None:
        raise ApiError(400, "echo with logprobs is not streamed: leave out stream", param="stream")
    params = service.params(body, typed)
    bos = None if body.add_special_tokens else False

    def encode() -> list[Encoded]:
        return [
            service.read_text(one, "prompt", bos=bos) if isinstance(one, str) else Encoded(one)
            for one in body.prompts()
        ]

    if body.suffix:
        encode = _filling(service, body)
    prompts = await service.encode(encode, body_nbytes(request))
    sent = {**typed, "prompt": "prompt", "form": body.form_field(typed)}
    running = await service.submit(prompts, params, stream=body.stream, sent=sent)
    head = DocumentHead(COMPLETION, name, forerun.__version__)
    writer = _writer(service, running, body, head, with_prompt=body.echo)
    return await _written(request, running, writer, stream=body.stream)


def _filling(service: Service, body: CompletionRequest) -> Callable[[], list[Encoded]]:
    """Makes the prompts whose answers stand between each of them and the suffix. Raises ApiError."""
    tokens, after = tokens_of(service, "suffix"), body.suffix
    texts = [one for one in body.prompts() if isinstance(one, str)]
    if len(texts) < len(body.prompts()):
        raise ApiError(400, "suffix needs prompts as text", param="suffix")
    return lambda: [
        Encoded(filled(service, tokens, one, after or "", ("prompt", "suffix")).token_ids, one)
        for one in texts
    ]


async def chat_completions(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    body, typed = await service.read(request, ChatRequest)
    name = service.name(body.model)
    running, has_tools = await _submit(service, request, body, typed)
    head = DocumentHead(CHAT, name, forerun.__version__)
    writer = _writer(service, running, body, head, with_tools=has_tools)
    return await _written(request, running, writer, stream=body.stream)


async def responses(service: Service, request: Request) -> Response:
    """Answer in OpenAI's newer form; nothing is stored."""
    body, _ = await service.read(request, ResponsesRequest)
    name = service.name(body.model)
    dialect = openai.ResponsesDialect(name, service.llm().drafter_spec.name, body)
    try:
        return await _in_blocks(service, request, openai.as_chat(body), dialect)
    except ApiError as error:
        raise renamed(error, openai.NAMES) from error


async def messages(service: Service, request: Request) -> Response:
    """Answer in Anthropic's form."""
    body, _ = await service.read(request, MessagesRequest)
    name = service.name(body.model)
    dialect = anthropic.MessagesDialect(name, service.llm().drafter_spec.name)
    try:
        return await _in_blocks(service, request, anthropic.as_chat(body), dialect)
    except ApiError as error:
        raise renamed(error, anthropic.NAMES) from error


async def count_tokens(service: Service, request: Request) -> Response:
    """Count the tokens of a prompt in Anthropic's form."""
    counted, _ = await service.read(request, CountTokensRequest)
    body, _ = read(ChatRequest, anthropic.as_chat(counted))
    service.name(body.model)

    def count() -> int:
        text = rendered(service, body)
        check_counted(text, "messages")
        return len(service.llm().tokenizer.encode(text, bos=False))

    return answer({"input_tokens": await service.encode(count, body_nbytes(request))})


async def _in_blocks(
    service: Service, request: Request, fields: Mapping[str, Any], dialect: Dialect
) -> Response:
    body, typed = read(ChatRequest, fields)
    for name in ("n", "logprobs", "top_logprobs", "prompt_logprobs"):
        if getattr(body, name) not in (None, 0, 1, False):
            raise ApiError(400, f"{name} is possible in /v1/chat/completions only", param=name)
    if body.timings_per_token:
        name = "timings_per_token"
        raise ApiError(400, f"{name} is possible in /v1/chat/completions only", param=name)
    running, has_tools = await _submit(service, request, body, typed)
    writer = BlockWriter(
        request=running,
        dialect=dialect,
        observe=service.metrics.follow(running),
        reader=Reader(with_tools=has_tools),
    )
    return await _written(request, running, writer, stream=body.stream)


async def _submit(
    service: Service, request: Request, body: ChatRequest, typed: Mapping[str, str]
) -> tuple[AsyncRequest, bool]:
    """Hand a conversation to the engine; and whether the model knows tools."""
    params = service.params(body, typed, service.defaults(max_tokens=DEFAULT_MAX_TOKENS))
    toolbox = _toolbox(service, body)
    params.structured_outputs = toolbox.form(params.structured_outputs)

    def encode() -> Encoded:
        return service.read_text(_rendered(service, body, toolbox), "messages", bos=False)

    prompts = [await service.encode(encode, body_nbytes(request))]
    sent = {**typed, "prompt": "messages", "form": body.form_field(typed)}
    running = await service.submit(prompts, params, stream=body.stream, sent=sent)
    return running, bool(toolbox.tools)


def rendered(service: Service, body: ChatRequest) -> str:
    """The text that a conversation becomes."""
    return _rendered(service, body, _toolbox(service, body))


def _toolbox(service: Service, body: ChatRequest) -> Toolbox:
    check_depth(body.tools, "tools", service.config)
    return Toolbox.of(body.tools, body.tool_choice, body.parallel_tool_calls)


def _rendered(service: Service, body: ChatRequest, toolbox: Toolbox) -> str:
    """The conversation as the model reads it."""
    tokenizer = service.llm().tokenizer
    settings: dict[str, Any] = service.template_kwargs | (body.chat_template_kwargs or {})
    settings |= {"add_generation_prompt": body.add_generation_prompt}
    given = [_with_system_role(message) for message in body.messages]
    turns, own = toolbox.prepare(given, tokenizer)
    check_roles(given)
    return tokenizer.apply_chat_template(turns, **settings, **own)


def _with_system_role(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI calls the system `developer` as well; templates do not know that."""
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _writer(
    service: Service,
    running: AsyncRequest,
    body: CompletionRequest | ChatRequest,
    head: DocumentHead,
    *,
    with_prompt: bool = False,
    with_tools: bool = False,
) -> Writer:
    llm = service.llm()
    return Writer(
        request=running,
        head=head,
        drafter=llm.drafter_spec.name,
        words=Words(llm.tokenizer.text_of, llm.tokenizer.token_bytes),
        observe=service.metrics.follow(running),
        options=body.stream_options or StreamOptions(),
        with_timings=body.timings_per_token,
        with_ids=body.return_token_ids,
        with_prompt=with_prompt,
        with_tools=with_tools,
    )


async def _written(
    request: Request, running: AsyncRequest, writer: Writer | BlockWriter, *, stream: bool
) -> Response:
    request.state.entry.running = running
    if stream:
        return EventStream(writer.stream(), running.cancel)
    async with watched(request.receive, running.cancel):
        return answer(await writer.whole())
