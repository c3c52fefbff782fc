"""Documents held to the types that clients have of them: every required key is there, and no key that is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

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
    "openai.Model": ("max_model_len", "meta", "drafter", "status"),
    "openai.ErrorObject": ("n_prompt_tokens", "n_ctx"),
    "anthropic.Message": ("timings",),
    "anthropic.RawMessageDeltaEvent": ("timings",),
}
"""What our documents have beyond those types, by the class: names of vLLM, llama-server and DeepSeek, and our own."""
NULLABLE: Mapping[str, tuple[str, ...]] = {
    "openai.Response": (
        *("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"),
    ),
}
"""Keys that OpenAI's API reference requires though they may be null; its client's types do without them."""


def faults(document: object, kind: Any) -> list[str]:
    """What is wrong with a document of a type; all is well with a `finish_reason` of null, which OpenAI streams."""
    text = json.dumps(document)
    if getattr(kind, "__name__", "") == "Completion":
        text = text.replace('"finish_reason": null', '"finish_reason": "stop"')
    try:
        parsed = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        return [f"{one['loc']}: {one['msg']}" for one in error.errors()]
    return [*_unknown(parsed)]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _unknown(value: object, path: str = "") -> Iterator[str]:
    """Keys that their types do not have, nor our extensions; and those that are missing though they may be null."""
    if isinstance(value, list):
        for i, one in enumerate(value):
            yield from _unknown(one, f"{path}.{i}")
    if isinstance(value, BaseModel):
        kind = type(value)
        package, *_, module = kind.__module__.split(".")
        names = (f"{package}.{kind.__name__}", f"{package}.{module}.{kind.__name__}")
        more = {key for name in names for key in EXTENSIONS.get(name, ())}
        for name in (value.model_extra or {}).keys() - more:
            yield f"{path} has an unknown {name!r}"
        for name in {
            key for each in names for key in NULLABLE.get(each, ())
        } - value.model_fields_set:
            yield f"{path} lacks {name!r}"
        for name in kind.model_fields:
            yield from _unknown(getattr(value, name), f"{path}.{name}")
