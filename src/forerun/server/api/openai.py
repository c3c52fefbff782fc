"""OpenAI's completions and chat completions, and how a conversation becomes a request of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import PlainValidator, TypeAdapter, WithJsonSchema
from starlette.responses import Response

from forerun.compat.chats import bounded
from forerun.compat.tools import Toolbox
from forerun.core.params import BATCH_PRIORITY, SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.server.api.openai_writer import OpenAIWriter
from forerun.server.async_request import AsyncRequest
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import invalid, must_be
from forerun.server.instructions import FIELDS, LEAST
from forerun.server.limits import check_counted, check_depth, check_tools
from forerun.server.models import FromBody
from forerun.server.openapi import OBJECT, answers, list_of
from forerun.server.schema import TEXT_OR_PARTS, SampledAnswer, listed
from forerun.server.service import Service
from forerun.server.thinking import Reasoning, ThinkingField, Thought
from forerun.server.writer import NewParser
from forerun.text.messages import render_unfinished
from forerun.text.parsing.calls import schemas_of
from forerun.text.parsing.forms import has_special_marks, with_thought, without_thought
from forerun.text.prompt import Encoded, with_instructions

router = APIRouter(route_class=JsonRoute)
PROMPT = str | list[str] | list[int] | list[list[int]]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_CHAT_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": [*ROLES]},
        "content": {"anyOf": [{"type": "null"}, *TEXT_OR_PARTS]},
        "tool_calls": list_of(OBJECT),
    },
    "required": ["role"],
    "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
}


ChatMessages = Annotated[list[dict[str, Any]], listed(_CHAT_MESSAGE)]


def _one_kind(prompt: object) -> object:
    """Check that a prompt is of one type; pydantic would try each on every entry, for seconds where there are many."""
    kinds = {*map(type, prompt)} if isinstance(prompt, list) else {type(prompt)}
    if kinds == {list}:
        kinds = {*map(type, itertools.chain.from_iterable(prompt))}  # type: ignore[arg-type]
        fine = kinds <= {int}
    else:
        fine = kinds == {str} or (isinstance(prompt, list) and kinds <= {int})
    if not fine:
        raise ValueError
    return prompt


_Prompt = Annotated[
    PROMPT, PlainValidator(_one_kind), WithJsonSchema(TypeAdapter(PROMPT).json_schema())
]


class CompletionRequest(SampledAnswer):
    """A text to continue."""

    prompt: _Prompt
    """One prompt or several, as text or token ids."""
    logprobs: int | None = None
    """Log-probabilities of the tokens and of this many likeliest ones."""
    echo: bool = False
    """Put the prompt before the answer."""
    add_special_tokens: bool = True
    """Begin with the model's BOS token, if it wants one."""
    suffix: str | None = None
    """What comes after the answer: a model that was trained for it fills the gap."""

    def scores(self) -> dict[str, int | None]:
        """Score the prompt's tokens too with `echo`."""
        if self.logprobs is None:
            return {}
        names = ("logprobs", "prompt_logprobs") if self.echo else ("logprobs",)
        return dict.fromkeys(names, self.logprobs)

    def prompts(self) -> list[str | list[int]]:
        """Return the single prompts."""
        given: Any = self.prompt
        is_many = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        return given if is_many else [given]


class ChatRequest(SampledAnswer):
    """A conversation to answer."""

    messages: ChatMessages
    """The turns so far."""
    logprobs: bool | None = None
    """Log-probabilities of the answer's tokens."""
    top_logprobs: int | None = None
    """And of this many likeliest ones."""
    add_generation_prompt: bool = True
    """End the prompt where the answer begins."""
    continue_final_message: bool = False
    """End it where the last message does, which is the assistant's: the answer goes on with that."""
    chat_template_kwargs: dict[str, Any] | None = None
    """What the model's template reads besides."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""
    parallel_tool_calls: bool | None = None
    """False: one call at most, where calls are required."""
    reasoning_effort: str | None = None
    """How hard the model thinks, where its template has a switch: none, minimal, low, medium, high, xhigh or max."""
    reasoning: Reasoning | None = None
    """The same as `effort`; `enabled`, `max_tokens`."""
    thinking: ThinkingField = None
    """Whether it thinks, as Anthropic writes it: `type` enabled, adaptive or disabled, `budget_tokens`."""
    enable_thinking: bool | None = None
    """Whether it thinks."""
    thinking_budget: int | None = None
    """Tokens of a thought, where the template has a switch for that."""
    reasoning_format: Literal["auto", "deepseek", "none"] = "auto"
    """none: what the model thinks is part of its text, as it wrote it."""

    def scores(self) -> dict[str, int | None]:
        """Read them as chat completions ask for them."""
        if not self.logprobs:
            if self.top_logprobs:
                raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
            return {}
        return {"logprobs": self.top_logprobs or 0}

    def check(self) -> None:
        """Check roles, tools and thoughts too. Raises ApiError."""
        super().check()
        check_roles(self.messages)
        self.thought()
        Toolbox.of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def thought(self) -> Thought:
        """Read whether and how the model shall think. Raises ApiError."""
        given = (self.reasoning, self.reasoning_effort, self.thinking)
        return Thought.read(*given, self.enable_thinking, self.thinking_budget)


@router.post("/v1/completions", responses=answers(streams=True))
async def completions(service: FromBody, request: JsonRequest, body: CompletionRequest) -> Response:
    """Continue a text."""
    service.name(body.model)
    running = await continued(service, request, body)
    writer = OpenAIWriter(service, running, body, with_prompt=body.echo)
    return await writer.reply(request, stream=body.stream)


async def continued(
    service: Service, request: JsonRequest, body: CompletionRequest
) -> AsyncRequest:
    """Hand the prompts of a completion to the engine. Raises ApiError."""
    if body.echo and body.stream and body.logprobs is not None:
        raise invalid("echo with logprobs is not streamed: leave out stream", "stream")
    bos = None if body.add_special_tokens else False
    given = body.prompts()
    params = service.params(body, priority=BATCH_PRIORITY if len(given) > 1 else 0)
    infill = service.fill_in("suffix") if body.suffix else None
    if infill is not None and not all(isinstance(one, str) for one in given):
        raise invalid("suffix needs prompts as text", "suffix")

    def encode(one: str | list[int]) -> Encoded:
        if not isinstance(one, str):
            return Encoded(one)
        if infill is None:
            return service.read_text(one, "prompt", bos=bos)
        return Encoded(
            service.read_infill(infill, ("prompt", one), ("suffix", body.suffix or "")), one
        )

    def read() -> Awaitable[list[Encoded]]:
        return service.encode(lambda: [encode(one) for one in given], request.nbytes)

    return await service.submit(request, read, len(given), params, "prompt", body)


@router.post(
    "/v1/chat/completions",
    responses=answers(streams=True),
)
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(service: FromBody, request: JsonRequest, body: ChatRequest) -> Response:
    """Answer a conversation."""
    service.name(body.model)
    running, new_parser = await submit(service, request, body)
    writer = OpenAIWriter(service, running, body, new_parser)
    return await writer.reply(request, stream=body.stream)


async def submit(
    service: Service, request: JsonRequest, body: ChatRequest, earlier: Sequence[int] = ()
) -> tuple[AsyncRequest, NewParser]:
    """Hand a conversation to the engine, behind `earlier` tokens; also return what makes a parser of the answer."""
    toolbox = _toolbox(service, body)
    params, form = service.params(body, max_tokens=None), service.form
    if toolbox.required or (toolbox.tools and params.structured_outputs is not None):
        params.structured_outputs = await _form(service, request, toolbox, params)
    if has_special_marks(form, service.llm().tokenizer):
        params.skip_special_tokens = False

    async def read() -> list[Encoded]:
        text = await service.render(lambda: _rendered(service, body, toolbox))
        if body.reasoning_format != "none":
            _read_thought(service, body, params, text)
        nbytes = max(len(text), request.nbytes)

        def encoded() -> list[Encoded]:
            one = service.read_text(text, "messages", bos=False)
            tokenizer = service.llm().tokenizer
            if not earlier and service.llm().engine.cache.disk is None:
                return [one]
            if not earlier:
                one = with_instructions(one, body.messages, tokenizer)
                if one.num_instructions >= LEAST:
                    fields = _read_fields(service, body, toolbox)
                    agent = request.headers.get("user-agent", "")
                    service.last_seen.note(agent, body.messages, fields)
                return [one]
            if one.token_ids[:1] == [tokenizer.bos_id]:
                del one.token_ids[0]  # it stands at the beginning already
            return [Encoded([*earlier, *one.token_ids], one.text)]

        return await service.encode(encoded, nbytes)

    running = await service.submit(request, read, 1, params, "messages", body)
    return running, partial(
        form.parser,
        running.handles[0].prompt or "",
        tools=toolbox.schemas,
        with_reasoning=body.reasoning_format != "none",
    )


def _read_fields(service: Service, body: ChatRequest, toolbox: Toolbox) -> dict[str, object]:
    """Return what a conversation's beginning is written of besides its messages."""
    fields = body.model_dump(include={*FIELDS}, exclude_none=True, mode="json")
    if toolbox.tools:
        fields["tools"] = [*toolbox.tools]
    own = {
        k: v for k, v in (body.chat_template_kwargs or {}).items() if k in service.template.names
    }
    return fields | ({"chat_template_kwargs": own} if own else {})


async def _form(
    service: Service, request: JsonRequest, toolbox: Toolbox, params: SamplingParams
) -> StructuredOutputsParams:
    """Write the form of an answer with calls, off the event loop. Raises ApiError, RequestError."""
    new_grammar = await service.call_grammar()

    def written() -> StructuredOutputsParams:
        check_tools(schemas_of(toolbox.required or toolbox.tools), service.config)
        return toolbox.form(params.structured_outputs, new_grammar)

    return await service.encode(written, request.nbytes)


def _read_thought(service: Service, body: ChatRequest, params: SamplingParams, text: str) -> None:
    """Put the form of the answer to a prompt, and what stops it, behind its thought."""
    params.stop_behind = service.form.stop_behind(text)
    if (begun := service.form.begun(text)) is not None:
        params.structured_outputs = bounded(
            params.structured_outputs,
            begun,
            _thought(service, body).bound,
            params.max_tokens or service.llm().max_len,
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
    template, thought = service.template, _thought(service, body)
    messages, tools = toolbox.prepare(body.messages, reads_tools=template.reads_tools)
    check_roles(body.messages)
    switches = thought.variables(template.names)
    variables = service.template_kwargs | switches | (body.chat_template_kwargs or {})
    if body.continue_final_message:
        return render_unfinished(
            messages, lambda begun: template.render(begun, False, tools, variables)
        )
    text = template.render(messages, body.add_generation_prompt, tools, variables)
    is_off = thought.is_on is False and not switches and body.add_generation_prompt
    if thought.bound is not None and body.add_generation_prompt:
        return with_thought(text, service.form.thinking)
    return without_thought(text, service.form.thinking) if is_off else text


def _thought(service: Service, body: ChatRequest) -> Thought:
    """Read how the model shall think, as the server's option says where the request does not."""
    thought, config = body.thought(), service.config
    if thought != Thought():
        return thought
    is_on = None if config.reasoning == "auto" else config.reasoning == "on"
    if is_on is False or (budget := config.reasoning_budget) is None or budget < 0:
        return Thought(is_on=is_on)
    return Thought(is_on=budget > 0, budget=budget or None)


def check_roles(messages: Sequence[Mapping[str, Any]], field: str = "messages") -> None:
    """Raise ApiError for a role that there is not. One that is missing is refused with what else is."""
    for number, message in enumerate(messages):
        role = message.get("role", "user")
        if role not in ROLES:
            allowed = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
            raise must_be(f"{field}[{number}].role", allowed, role, field)
