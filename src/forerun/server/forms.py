"""What requests write as objects: the form of an answer, its prediction, how it is drafted; and their bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forerun.core.config import AUTO
from forerun.core.errors import RequestError, short_repr, unknown
from forerun.core.structured import StructuredOutputsParams, depth
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError

_TYPES = "text, json_object or json_schema"


def of_response_format(given: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """Read OpenAI's `response_format`; a schema beside `json_object` is llama-server's way. Raises ApiError."""
    if given is None or given.get("type") == "text":
        return None
    kind, field = given.get("type"), "response_format"
    schema: object = None
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else given.get("schema")
        field = f"{field}.json_schema.schema"
        if schema is None:
            raise ApiError(400, f"{field} is missing: it must be a JSON schema", param=field)
    elif kind == "json_object":
        schema = given.get("schema")
    else:
        raise ApiError(400, f"{field}.type must be {_TYPES}, got {short_repr(kind)}", param=field)
    try:
        if schema is None:
            return StructuredOutputsParams(json_object=True)
        return StructuredOutputsParams(json=schema)
    except RequestError as error:
        raise ApiError(400, str(error), param=field) from error


def of_prediction(given: str | Mapping[str, Any]) -> str:
    """Read OpenAI's `prediction`: a text, or its parts. Raises ApiError."""
    content = given.get("content") if isinstance(given, Mapping) else given
    if isinstance(given, Mapping) and given.get("type", "content") != "content":
        content = None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        is_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(map(str, texts)) if is_text else None
    if not isinstance(content, str):
        what = '{"type": "content", "content": TEXT}'
        raise ApiError(
            400, f"prediction must be {what}, got {short_repr(given)}", param="prediction"
        )
    return content


def max_draft(given: Mapping[str, Any], drafter: str) -> int | None:
    """Read the most tokens that may be drafted, of a request's `speculative`; None: any. Raises ApiError.

    `drafter` is the one that is loaded.
    """
    for name in given.keys() - {"drafter", "max_draft"}:
        message = unknown("field of speculative", name, ("drafter", "max_draft"))
        raise ApiError(400, message, param="speculative")
    asked, most = given.get("drafter"), given.get("max_draft")
    if asked not in (None, AUTO, "none", drafter):
        raise ApiError(
            400,
            f"speculative.drafter must be {drafter}, auto or none, got {short_repr(asked)}: a server has "
            "the drafter it was started with",
            param="speculative",
        )
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
        message = f"speculative.max_draft must be a whole number from 0, got {short_repr(most)}"
        raise ApiError(400, message, param="speculative")
    return 0 if asked == "none" else most


def check_bounds(form: StructuredOutputsParams, config: ServerConfig, field: str) -> None:
    """Raise ApiError for a form that is larger or more deeply nested than the server allows."""
    nbytes, limit = len(form.source.encode()), config.max_schema_kb
    if nbytes > limit * 1e3:
        raise ApiError(
            400,
            f"the {form.kind} of the structured output has {nbytes} bytes, this server allows "
            f"{limit:g} kB (--max-schema-kb)",
            param=field,
        )
    if form.json is not None:
        check_depth(json.loads(str(form.json)), field, config)


def check_depth(given: object, field: str, config: ServerConfig) -> None:
    """Raise ApiError for what is more deeply nested than the server allows."""
    levels = depth(given)
    if levels > config.max_schema_depth:
        raise ApiError(
            400,
            f"the schema in {field} is nested {levels} levels deep, this server allows "
            f"{config.max_schema_depth} (--max-schema-depth)",
            param=field,
        )
