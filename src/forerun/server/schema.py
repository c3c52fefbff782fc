"""The bodies of requests. What values may be, `SamplingParams` checks; here are names and types.

The fields of sampling are those of `SamplingParams`; other engines' names are read first (`forerun.compat`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from forerun.compat import requests as compat
from forerun.compat.chats import response_format
from forerun.compat.ignored_fields import leave_out
from forerun.compat.tools import CHOICES
from forerun.core import options
from forerun.core.config import AUTO
from forerun.core.errors import RequestError, given_as, short_repr
from forerun.core.params import MAX_IDS, MAX_LOGPROBS, SamplingParams
from forerun.server.errors import ApiError, invalid, must_be, of_exception
from forerun.server.openapi import TEXT, list_of, object_of

MAX_ITEMS = MAX_IDS
"""Entries of a field that is a list or an object."""
MAX_TURNS = 10_000
"""The same of a conversation, and of texts."""
_LONG = ("messages", "input", "documents", "texts")
TEXT_OR_PARTS = (TEXT, list_of(object_of(type=TEXT)))


def listed(message: dict[str, Any]) -> WithJsonSchema:
    """Describe a list of messages of one schema."""
    return WithJsonSchema({"type": "array", "items": message, "minItems": 1})


class NestedFields(BaseModel):
    """An object within a body: fields of it that are not known are left out."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: object) -> object:
        return _known(given, cls) if isinstance(given, dict) else given


class TextPart(BaseModel):
    """A part of a text."""

    model_config = ConfigDict(strict=True)

    text: str


class Prediction(BaseModel):
    """OpenAI's `prediction`: what the answer is expected to be."""

    model_config = ConfigDict(strict=True)

    type: Literal["content"] = "content"
    content: str | list[TextPart]

    def __str__(self) -> str:
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class Speculative(NestedFields):
    """How one request is drafted."""

    drafter: str | None = None
    """`none`, `auto` or the one that is loaded."""
    max_draft: Annotated[int, Field(ge=0)] | None = None
    """Tokens of a draft, at most."""

    def most(self, drafter: str) -> int | None:
        """Return the most tokens that may be drafted, by the drafter that is loaded; None: any. Raises ApiError."""
        if self.drafter not in (None, AUTO, "none", drafter):
            allowed = f"speculative.drafter must be {drafter}, auto or none, got {short_repr(self.drafter)}"
            message = f"{allowed}: a server has the drafter it was started with"
            raise invalid(message, "speculative")
        return 0 if self.drafter == "none" else self.max_draft


_TYPES: Mapping[str, Any] = {
    "stop": str | list[str],
    "stop_token_ids": list[int],
    "allowed_token_ids": list[int],
    "bad_words": list[str],
    "samplers": list[str],
    "logit_bias": dict[str, float],
    "structured_outputs": dict[str, Any],
    "prediction": str | Prediction,
}
"""Of fields that JSON writes otherwise."""
_ELSEWHERE = (
    *("logprobs", "detokenize", "pooling", "stop_behind", "logits_processors", "output_kind"),
)
"""Fields that not every route has, or none."""
_WHOLE = "a whole number"
_WORDS: Mapping[str, str] = {
    "prompt": "a text, token ids, or a list of either",
    "stop": "a text or a list of texts",
    "messages": 'a list of {"role": ..., "content": ...}',
    "tools": 'a list of {"type": "function", "function": {"name": ...}}',
    "tool_choice": CHOICES,
    "logit_bias": "an object of token ids and numbers",
    "input": "a text or a list of items",
    "prediction": '{"type": "content", "content": TEXT}',
    "reasoning.enabled": "true or false",
    "reasoning.max_tokens": _WHOLE,
    "speculative.max_draft": f"{_WHOLE} from 0",
    "thinking.budget_tokens": _WHOLE,
    "thinking.type": "one of enabled, adaptive, disabled",
}
"""What a field must be, where pydantic's words are too few."""
_OBJECTS = ("prediction", "reasoning", "speculative", "thinking")
"""Fields that are the `param` of what is wrong within them."""


class StreamOptions(NestedFields):
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


def _allow_null(schema: dict[str, Any]) -> None:
    """Describe that a field which may be left out may be null as well, which is the same."""
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()):
            kept = {key: field.pop(key) for key in ("default", "description") if key in field}
            choices = field.pop("anyOf", None) or [{**field}]
            field.clear()
            null = [] if {"type": "null"} in choices else [{"type": "null"}]
            field |= {"anyOf": [*choices, *null], **kept}


class RequestBody(BaseModel):
    """What a route reads. To validate one raises ApiError that names the first wrong field."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_allow_null)

    model: str | None = None
    """One of /v1/models; left out, the one that is served."""

    _typed: Mapping[str, str] = PrivateAttr(default_factory=dict)
    """By field of ours: what the client called it, where that is another name."""

    @property
    def only_unloads(self) -> bool:
        """Whether the model is not used, but unloaded."""
        return False

    def check(self) -> None:
        """Raise ApiError for what is wrong whichever model is asked: before one is loaded for it."""

    @classmethod
    def rename(cls, given: Mapping[str, object]) -> tuple[Mapping[str, object], dict[str, str]]:
        """Read the fields by our names, and say what they were called. Raises RequestError."""
        return compat.read(given, cls.model_fields)

    @model_validator(mode="wrap")
    @classmethod
    def _read(
        cls, given: dict[str, object] | Self, validate: ModelWrapValidatorHandler[Self]
    ) -> Self:
        if not isinstance(given, dict):
            return validate(given)  # read already, or none
        typed: dict[str, str] = {}
        try:
            _check_count(given, "the body")
            given = compat.stateless(given, cls.model_fields)
            fields, typed = cls.rename(given)
            fields = _known(fields, cls, typed)
            _check_sizes(fields, typed)
            body = validate(fields)
        except RequestError as error:
            raise of_exception(error) from error
        except ValidationError as error:
            raise _api_error(error, typed) from None
        body._typed = typed
        return body


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

    speculative: Speculative | None = None
    """How this request is drafted."""

    def check(self) -> None:
        """Raise ApiError for parameters out of their ranges."""
        self._sampling(SamplingParams())

    def params(self, defaults: SamplingParams, drafter: str) -> SamplingParams:
        """Make the parameters, those that are not given from `defaults`; `drafter` is loaded. Raises ApiError."""
        params = self._sampling(defaults)
        if self.speculative is not None:
            params.max_draft = self.speculative.most(drafter)
        return params

    def _sampling(self, defaults: SamplingParams) -> SamplingParams:
        names = {field.name for field in dataclasses.fields(SamplingParams)}
        given = {
            name: getattr(self, name)
            for name in (names & self.model_fields_set) - {*_ELSEWHERE}
            if getattr(self, name) is not None
        }
        given |= self.scores()
        if "prediction" in given:
            given["prediction"] = str(given["prediction"])
        if self.response_format is not None and (form := response_format(self.response_format)):
            other = given.get("structured_outputs")
            if other is None:
                given["structured_outputs"] = form
            elif not (form.json_object and "json" in other):  # a schema of JSON is llama.cpp's way
                name = self._typed["structured_outputs"]
                raise invalid(f"give response_format or {name}, not both", name)
        try:
            with given_as(self._typed):
                _check_scores(given)
                return dataclasses.replace(defaults, **given)
        except RequestError as error:
            raise of_exception(error) from error
        except ValueError as error:
            message = f"logit_bias must be {_WORDS['logit_bias']}"
            raise invalid(message, "logit_bias") from error

    @property
    def form_field(self) -> str:
        """The field that says what form the answer has."""
        if self.response_format is not None:
            return "response_format"
        if getattr(self, "structured_outputs", None) is None and getattr(self, "tools", None):
            return "tools"
        return self._typed.get("structured_outputs", "structured_outputs")

    def scores(self) -> dict[str, int | None]:
        """Return the log-probabilities that are asked for, as fields of SamplingParams."""
        raise NotImplementedError


def _check_scores(given: Mapping[str, Any]) -> None:
    """Raise RequestError where the scores of all tokens are asked for: no answer is so long."""
    for name in ("logprobs", "prompt_logprobs"):
        if isinstance(value := given.get(name), int) and value < 0:
            message = f"{name} must be from 0 to {MAX_LOGPROBS}, or none, got {value}"
            raise RequestError(message, option=name)


if TYPE_CHECKING:
    SampledAnswer = AnswerRequest
else:
    SampledAnswer = create_model("SampledAnswer", __base__=AnswerRequest, **_sampling_fields())


class OpenBody(RequestBody):
    """A conversation of another API. Fields that are not named are read as those of a chat request."""

    model_config = ConfigDict(extra="allow", strict=True)

    tools: list[dict[str, Any]] | None = None
    """Functions that the answer may call."""

    dialect_names: ClassVar[Mapping[str, str]] = {}
    """What the fields of a chat request are called there."""

    @classmethod
    def rename(cls, given: Mapping[str, object]) -> tuple[Mapping[str, object], dict[str, str]]:
        """Leave the others to the chat request."""
        return {compat.snake(name, cls.model_fields): value for name, value in given.items()}, {}

    def as_chat(self) -> dict[str, Any]:
        """Write the fields of the chat request that says the same. Raises ApiError."""
        raise NotImplementedError

    def but(self, names: Collection[str]) -> dict[str, Any]:
        """Return the fields of other names, as they stand: what is in them may be large."""
        return {name: value for name, value in self if name not in names}


def _known(
    fields: Mapping[str, object], body: type[BaseModel], typed: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Leave out the fields that are not known, and read whole numbers with a point. Raises RequestError."""
    _check_count(fields, "an object")
    known = body.model_fields
    if body.model_config.get("extra") != "allow":
        strange = fields.keys() - known.keys()
        leave_out({(typed or {}).get(name, name) for name in strange}, known)
        fields = {name: value for name, value in fields.items() if name in known}
    return {name: _whole(value, known.get(name)) for name, value in fields.items()}


def _whole(value: object, field: FieldInfo | None) -> object:
    """Read 16.0 as 16 where a whole number is meant: some clients have floats alone."""
    if not isinstance(value, float) or not value.is_integer() or field is None:
        return value
    kinds = {*_types(field.annotation)}
    return int(value) if int in kinds and float not in kinds else value


def _types(annotation: object) -> Iterator[object]:
    """Yield the types that an annotation is made of."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from _types(part)


def _check_count(fields: Mapping[str, object], what: str) -> None:
    """Raise ApiError for an object of more fields than any request needs."""
    if len(fields) > MAX_ITEMS:
        raise invalid(f"{what} has {len(fields)} fields, at most {MAX_ITEMS} are allowed")


def _check_sizes(fields: Mapping[str, object], typed: Mapping[str, str]) -> None:
    """Raise ApiError for a list or an object of more entries than any request needs; of prompts the tokens tell."""
    for name, value in fields.items():
        most = MAX_TURNS if name in _LONG else MAX_ITEMS
        if name in ("prompt", "tokens") or not isinstance(value, list | dict) or len(value) <= most:
            continue
        field = typed.get(name, name)
        raise invalid(f"{field} has {len(value)} entries, at most {most} are allowed", field)


def _api_error(error: ValidationError, typed: Mapping[str, str]) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = [part for part in first["loc"] if not _is_alternative(part)]
    field = str(path[0]) if path else ""
    name = ".".join(map(str, [typed.get(field, field), *path[1:]]))
    param = typed.get(field, field) if field in _OBJECTS else name
    if field == "prediction":
        name = param
    elif first["type"] == "missing":
        return invalid(f"{name} is missing: it must be {_WORDS.get(name, 'given')}", param)
    words = "an object" if first["type"] == "model_type" else first["msg"]
    what = _WORDS.get(name) or _WORDS.get(field) or words.removeprefix("Input should be ")
    return must_be(name, what, first["input"], param)


def _is_alternative(part: int | str) -> bool:
    """Tell what pydantic calls the member of a union, which is not part of the path."""
    return isinstance(part, str) and (
        "[" in part or part in ("str", "int", "float", "bool", "Prediction")
    )
