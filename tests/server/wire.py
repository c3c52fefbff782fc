"""Documents held to the types that clients have of them: every required key is there, and no key that is not known."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "openai.ChatCompletion": ("timings", "prompt_logprobs", "prompt_token_ids"),
    "openai.chat_completion.Choice": ("stop_reason", "token_ids"),
    "openai.ChatCompletionMessage": ("reasoning_content", "reasoning"),
    "openai.ChatCompletionChunk": ("timings",),
    "openai.chat_completion_chunk.Choice": (
        *("stop_reason", "token_ids", "prompt_token_ids", "pieces"),
    ),
    "openai.ChoiceDelta": ("reasoning_content", "reasoning"),
    "openai.Completion": ("timings",),
    "openai.CompletionChoice": (
        *("stop_reason", "token_ids", "pieces", "prompt_logprobs", "prompt_token_ids"),
    ),
    "openai.Response": ("timings", "store"),  # OpenAI itself sends `store`
    "openai.InputTokensDetails": ("cache_write_tokens",),  # new in openai 3
    "openai.ResponseFunctionCallArgumentsDoneEvent": ("name",),  # required by openai 2
    "openai.Model": ("max_model_len", "drafter", "status"),
    "openai.ErrorObject": ("n_prompt_tokens", "n_ctx"),
    "anthropic.Message": ("timings",),
    "anthropic.RawMessageDeltaEvent": ("timings",),
}
"""What our documents have beyond those types, by the class: names of vLLM, llama-server and DeepSeek, and our own."""
NULL: Mapping[str, tuple[str, ...]] = {"openai.CompletionChoice": ("finish_reason",)}
"""What may be null though the types say otherwise: OpenAI itself streams completions so."""


def faults(value: object, kind: Any, path: str = "") -> list[str]:
    """What is wrong with a document of a type, in the form of which the least is wrong."""
    kind = _bare(kind)
    if kind is Any or kind is object:
        return []
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return min((faults(value, one, path) for one in arguments), key=_weight)
    if origin is typing.Literal:
        return [] if value in arguments else [f"{path} is {value!r}, not of {arguments}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [
            fault
            for i, one in enumerate(value)
            for fault in faults(one, arguments[0], f"{path}.{i}")
        ]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{path} is no object"]
        return [
            fault
            for name, one in value.items()
            for fault in faults(one, arguments[1], f"{path}.{name}")
        ]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [*_of_model(value, kind, path)]
    return [] if _is_plain(value, kind) else [f"{path} is {value!r}, no {kind}"]


def _of_model(value: object, kind: type[BaseModel], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is {value!r}, no {kind.__name__}"
        return
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    package, *_, module = kind.__module__.split(".")
    names = (f"{package}.{kind.__name__}", f"{package}.{module}.{kind.__name__}")
    more, null = ({key for name in names for key in of.get(name, ())} for of in (EXTENSIONS, NULL))
    yield from (f"{path} has an unknown {name!r}" for name in value.keys() - fields.keys() - more)
    for name, field in fields.items():
        if name in value and value[name] is None and name in null:
            continue
        if name in value:
            yield from faults(value[name], field.annotation, f"{path}.{name}")
        elif field.is_required():
            yield f"{path} has no {name!r}"


def _bare(kind: Any) -> Any:
    """A type without what describes it, and without its alias."""
    while True:
        if hasattr(kind, "__value__"):
            kind = kind.__value__
        elif typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        else:
            return kind


def _weight(found: list[str]) -> tuple[bool, int]:
    """Put a form of another `type` last."""
    return any(".type is" in fault and "not of" in fault for fault in found), len(found)


def _is_plain(value: object, kind: Any) -> bool:
    if kind is None or kind is type(None):
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
