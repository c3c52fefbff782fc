"""The bodies of requests. What values may be, `SamplingParams` checks; here are names and types.

The fields of sampling are those of `SamplingParams`; other engines' names are read first (`forerun.spellings`).
A field that is unknown is an error that names the allowed ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from forerun.core import options
from forerun.core.errors import RequestError, given_as, short_repr, unknown
from forerun.core.params import MAX_IDS, SamplingParams
from forerun.server import forms
from forerun.server.errors import ApiError, of_exception
from forerun.server.tools import CHOICES
from forerun.spellings import requests as spellings

PROMPT = str | list[str] | list[int] | list[list[int]]
MAX_ITEMS = MAX_IDS
"""Entries of a field that is a list or an object."""
MAX_TURNS = 10_000
"""The same of a conversation."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

TEXT_OR_PARTS = (
    {"type": "string"},
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"type": {"type": "string"}},
            "required": ["type"],
        },
    },
)
_CALLS = {"type": "array", "items": {"type": "object"}}
_CHAT_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": [*ROLES]},
        "content": {"anyOf": [{"type": "null"}, *TEXT_OR_PARTS]},
        "tool_calls": _CALLS,
    },
    "required": ["role"],
    "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
}


def listed(message: dict[str, Any]) -> WithJsonSchema:
    """Describe a list of messages of one schema."""
    return WithJsonSchema({"type": "array", "items": message, "minItems": 1})


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


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(extra="forbid", strict=True)

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


class RequestBody(BaseModel):
    """What a route reads. To validate one raises ApiError that names the first wrong field."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    """One of /v1/models; left out, the one that is served."""

    _typed: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def typed(self) -> Mapping[str, str]:
        """By field of ours: what the client called it, where that is another name."""
        return self._typed

    @classmethod
    def rename(cls, given: Mapping[str, object]) -> tuple[Mapping[str, object], dict[str, str]]:
        """Read the fields by our names, and say what they were called. Raises RequestError."""
        return given, {}

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: dict[str, object], validate: ModelWrapValidatorHandler[Self]) -> Self:
        typed: dict[str, str] = {}
        try:
            fields, typed = cls.rename(given)
            _check_sizes(fields, typed)
            found = validate(fields)
        except RequestError as error:
            raise of_exception(error) from error
        except ValidationError as error:
            raise _api_error(error, cls, typed) from None
        found._typed = typed
        return found


class AnswerRequest(RequestBody):
    """What every route that answers takes."""

    stream: bool = False
    """Send the answer as it comes, as server-sent events."""
    stream_options: StreamOptions | None = None
    """What the stream tells besides the text."""
    timings_per_token: bool = False
    """In a stream: the timings so far in every chunk, not only in the last."""
    return_progress: bool = False
    """In a stream: how far the prompt was read, as `prompt_progress`, before the answer begins."""
    return_token_ids: bool = False
    """Add the ids of the prompt's and the answer's tokens."""
    response_format: dict[str, Any] | None = None
    """`json_schema` or `json_object`: the form of the answer, as OpenAI writes it; `text` is any."""

    speculative: dict[str, Any] | None = None
    """How this request is drafted: `drafter` (`none`, `auto` or the one that is loaded), `max_draft`."""

    @classmethod
    def rename(cls, given: Mapping[str, object]) -> tuple[Mapping[str, object], dict[str, str]]:
        """Read other engines' names. Raises RequestError."""
        return spellings.read(given)

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """Make the parameters, those that are not given from `defaults`. Raises ApiError."""
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
            with given_as(self.typed):
                return dataclasses.replace(defaults, **given)
        except RequestError as error:
            raise of_exception(error) from error
        except ValueError as error:
            message = f"logit_bias must be {_WORDS['logit_bias']}"
            raise ApiError(400, message, param="logit_bias") from error

    @property
    def form_field(self) -> str:
        """The field that says what form the answer has."""
        if self.response_format is not None:
            return "response_format"
        if getattr(self, "structured_outputs", None) is None and getattr(self, "tools", None):
            return "tools"
        return self.typed.get("structured_outputs", "structured_outputs")

    def scores(self) -> dict[str, int | None]:
        """Return the log-probabilities that are asked for, as fields of SamplingParams."""
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
        """Score the prompt's tokens too with `echo`."""
        own = {"logprobs": self.logprobs} if self.logprobs is not None else {}
        return own | ({"prompt_logprobs": self.logprobs} if own and self.echo else {})

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
    chat_template_kwargs: dict[str, Any] | None = None
    """What the model's template reads besides."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or one of the tools."""
    parallel_tool_calls: bool | None = None
    """False: one call at most, where calls are required."""
    reasoning_format: Literal["auto", "deepseek", "none"] = "auto"
    """none: what the model thinks is part of its text, as it wrote it."""

    def scores(self) -> dict[str, int | None]:
        """Read them as chat completions ask for them."""
        if not self.logprobs:
            if self.top_logprobs:
                raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
            return {}
        return {"logprobs": self.top_logprobs or 0}


class OpenBody(RequestBody):
    """A conversation of another API. Fields that are not named are read as those of a chat request."""

    model_config = ConfigDict(extra="allow", strict=True)

    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""

    theirs: ClassVar[Mapping[str, str]] = {}
    """What the fields of a chat request are called there."""

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        raise NotImplementedError


def _check_sizes(fields: Mapping[str, object], typed: Mapping[str, str]) -> None:
    """Raise ApiError for a list or an object of more entries than any request needs; of prompts the tokens tell."""
    for name, value in fields.items():
        most = MAX_TURNS if name in ("messages", "input") else MAX_ITEMS
        if name in ("prompt", "tokens") or not isinstance(value, list | dict) or len(value) <= most:
            continue
        own = typed.get(name, name)
        raise ApiError(400, f"{own} has {len(value)} entries, at most {most} are allowed", own)


def _api_error(
    error: ValidationError, body: type[RequestBody], typed: Mapping[str, str]
) -> ApiError:
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
    """Tell what pydantic calls the member of a union, which is no part of the path."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))


def check_roles(messages: Sequence[Mapping[str, Any]], field: str = "messages") -> None:
    """Raise ApiError for a role that there is not. One that is missing is told with what else is."""
    for number, message in enumerate(messages):
        role = message.get("role", "user")
        if role not in ROLES:
            allowed = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
            what = f"{field}[{number}].role must be {allowed}, got {short_repr(role)}"
            raise ApiError(400, what, param=field)
