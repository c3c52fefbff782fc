"""The bodies of requests. What values may be, `SamplingParams` checks; here are names and types.

The fields of sampling are those of `SamplingParams`; other engines' names are read first (`forerun.spellings`).
A field that is unknown is an error that names the allowed ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from forerun.core import options
from forerun.core.errors import RequestError, given_as, short_repr, unknown
from forerun.core.params import MAX_IDS, SamplingParams
from forerun.server import forms
from forerun.server.conversations import AnthropicMessages, ChatMessages
from forerun.server.errors import ApiError, of_exception
from forerun.server.tools import CHOICES
from forerun.spellings import requests as spellings

Body = TypeVar("Body", bound=BaseModel)

PROMPT = str | list[str] | list[int] | list[list[int]]
MAX_ITEMS = MAX_IDS
"""Entries of a field that is a list or an object."""
MAX_TURNS = 10_000
"""The same of a conversation."""


def _one_kind(prompt: object) -> object:
    """A prompt of the types above. pydantic would try each type on every entry, for seconds where there are many."""
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
_TYPES: Mapping[str, Any] = {
    "stop": str | list[str],
    "stop_token_ids": list[int],
    "logit_bias": dict[str, float],
    "structured_outputs": dict[str, Any],
    "prediction": str | dict[str, Any],
}
"""Of fields that JSON writes otherwise."""
_ELSEWHERE = ("logprobs", "detokenize", "pooling")
"""Fields that not every route has, or none."""
_WORDS: Mapping[str, str] = {
    "prompt": "a text, token ids, or a list of either",
    "stop": "a text or a list of texts",
    "messages": 'a list of {"role": ..., "content": ...}',
    "tools": 'a list of {"type": "function", "function": {"name": ...}}',
    "tool_choice": CHOICES,
    "logit_bias": "an object of token ids and numbers",
    "input": "a text or a list of items",
}


class Strict(BaseModel):
    """Convert no value to another type, and refuse unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    """What a stream tells besides the text."""

    include_usage: bool = False
    """A last chunk with the usage of the whole request."""
    continuous_usage_stats: bool = False
    """The usage so far in every chunk."""
    include_pieces: bool = False
    """The text of every chunk token by token, and which of them the drafter had guessed."""
    include_obfuscation: bool = False
    """Nothing is obfuscated."""


def _sampling_fields() -> dict[str, Any]:
    hints = typing.get_type_hints(SamplingParams)
    return {
        one.name: (
            _TYPES.get(one.name, hints[one.name]) | None,
            Field(default=None, description=" ".join(one.help.split())),
        )
        for one in options.describe(SamplingParams)
        if one.name not in _ELSEWHERE
    }


class AnswerRequest(Strict):
    """What every route that answers takes."""

    model: str | None = None
    """One of /v1/models; left out, the one that is served."""
    stream: bool = False
    """Send the answer as it comes, as server-sent events."""
    stream_options: StreamOptions | None = None
    """What the stream tells besides the text."""
    timings_per_token: bool = False
    """In a stream: the timings so far in every chunk, not only in the last."""
    return_token_ids: bool = False
    """Add the ids of the prompt's and the answer's tokens."""
    response_format: dict[str, Any] | None = None
    """`json_schema` or `json_object`: the form of the answer, as OpenAI writes it; `text` is any."""

    speculative: dict[str, Any] | None = None
    """How this request is drafted: `drafter` (`none`, `auto` or the one that is loaded), `max_draft`."""

    def params(self, defaults: SamplingParams, typed: Mapping[str, str]) -> SamplingParams:
        """The parameters, those that are not given from `defaults`. Raises ApiError."""
        names = {field.name for field in dataclasses.fields(SamplingParams)}
        given = {
            name: getattr(self, name)
            for name in names & self.model_fields_set
            if getattr(self, name) is not None
        }
        given |= self.scores()
        if "prediction" in given:
            given["prediction"] = forms.of_prediction(given["prediction"])
        if (form := forms.of_response_format(self.response_format)) is not None:
            if "structured_outputs" in given:
                raise ApiError(400, "give response_format or structured_outputs, not both")
            given["structured_outputs"] = form
        try:
            with given_as(typed):
                return dataclasses.replace(defaults, **given)
        except RequestError as error:
            raise of_exception(error) from error
        except ValueError as error:
            message = f"logit_bias must be {_WORDS['logit_bias']}"
            raise ApiError(400, message, param="logit_bias") from error

    def form_field(self, typed: Mapping[str, str]) -> str:
        """The field that says what form the answer has."""
        if self.response_format is not None:
            return "response_format"
        if getattr(self, "structured_outputs", None) is None and getattr(self, "tools", None):
            return "tools"
        return typed.get("structured_outputs", "structured_outputs")

    def scores(self) -> dict[str, int | None]:
        """The log-probabilities that are asked for, as fields of SamplingParams."""
        raise NotImplementedError


if TYPE_CHECKING:
    SampledAnswer = AnswerRequest
else:
    SampledAnswer = create_model("SampledAnswer", __base__=AnswerRequest, **_sampling_fields())


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
    """What comes after the answer: a model that was trained to fills the hole."""

    def scores(self) -> dict[str, int | None]:
        """With `echo`, the prompt's tokens are scored too."""
        own = {"logprobs": self.logprobs} if self.logprobs is not None else {}
        return own | ({"prompt_logprobs": self.logprobs} if own and self.echo else {})

    def prompts(self) -> list[str | list[int]]:
        """The single prompts."""
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
    chat_template_kwargs: dict[str, Any] | None = None
    """What the model's template reads besides."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""
    parallel_tool_calls: bool | None = None
    """False: one call at most, where calls are required."""

    def scores(self) -> dict[str, int | None]:
        """As chat completions ask for them."""
        if not self.logprobs:
            if self.top_logprobs:
                raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
            return {}
        return {"logprobs": self.top_logprobs or 0}


class _Open(BaseModel):
    """Fields that are not named here are read as those of a chat request."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    """One of /v1/models; left out, the one that is served."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""


class ResponsesRequest(_Open):
    """A conversation as a list of items. Nothing is stored: all of it comes with every request."""

    input: str | list[dict[str, Any]]
    """The user's text, or the items so far: messages, function calls and their outputs."""
    instructions: str | None = None
    """A system message."""
    text: dict[str, Any] | None = None
    """`format`: the form of the answer."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""


class CountTokensRequest(_Open):
    """A conversation in Anthropic's form."""

    messages: AnthropicMessages
    """The turns so far, of text, calls and results."""
    system: str | list[dict[str, Any]] | None = None
    """A system message."""
    tool_choice: dict[str, Any] | None = None
    """auto, any, none, or one of the tools."""
    output_config: dict[str, Any] | None = None
    """`format`: the form of the answer."""


class MessagesRequest(CountTokensRequest):
    """A conversation to answer, in Anthropic's form."""

    max_tokens: int
    """Tokens of the answer, at most."""


class TokenizeRequest(Strict):
    """A text or a conversation to take apart: vLLM's fields, and llama-server's `content`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: ChatMessages | None = None
    add_special_tokens: bool = True
    """Begin with the model's BOS token, if it wants one."""
    add_special: bool = False
    """The same, for `content`."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    """Add the tokens' texts."""
    with_pieces: bool = False
    """Tokens as objects of `id` and `piece`, as llama-server has them."""


class DetokenizeRequest(Strict):
    """Token ids to put together."""

    model: str | None = None
    tokens: list[int]


def read(body: type[Body], given: Mapping[str, object]) -> tuple[Body, dict[str, str]]:
    """A request, and what its fields were called. Raises ApiError that names the first wrong one."""
    typed: dict[str, str] = {}
    fields = {**given}
    try:
        if issubclass(body, AnswerRequest):
            fields, typed = spellings.read(given)
        _check_sizes(fields, typed)
        return body.model_validate(fields), typed
    except RequestError as error:
        raise of_exception(error) from error
    except ValidationError as error:
        raise _told(error, body, typed) from None


def _check_sizes(fields: Mapping[str, object], typed: Mapping[str, str]) -> None:
    """Raise ApiError for a list or an object of more entries than any request needs; of prompts the tokens tell."""
    for name, value in fields.items():
        most = MAX_TURNS if name in ("messages", "input") else MAX_ITEMS
        if name in ("prompt", "tokens") or not isinstance(value, list | dict) or len(value) <= most:
            continue
        own = typed.get(name, name)
        raise ApiError(400, f"{own} has {len(value)} entries, at most {most} are allowed", own)


def _told(error: ValidationError, body: type[BaseModel], typed: Mapping[str, str]) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = [part for part in first["loc"] if not _is_alternative(part)]
    field = str(path[0]) if path else ""
    name = ".".join(map(str, [typed.get(field, field), *path[1:]]))
    if first["type"] == "extra_forbidden":
        allowed = StreamOptions.model_fields if len(path) > 1 else body.model_fields
        message = unknown("field", str(path[-1]), allowed, spellings.NAMES)
    elif first["type"] == "missing":
        message = f"{name} is missing: it must be {_WORDS.get(name, 'given')}"
    elif field in _WORDS:
        message = f"{name} must be {_WORDS[field]}, got {short_repr(first['input'])}"
    else:
        what = first["msg"].removeprefix("Input should be ")
        message = f"{name} must be {what}, got {short_repr(first['input'])}"
    return ApiError(400, message, param=name)


def _is_alternative(part: int | str) -> bool:
    """True for what pydantic calls the member of a union, which is no part of the path."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))
