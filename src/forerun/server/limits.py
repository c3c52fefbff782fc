"""Bounds of prompts and schemas: what cannot fit is refused before it is encoded or compiled.

To encode takes a core for seconds a megabyte, and a hundred times the text's memory: `BodyQueue` runs it.
"""

from __future__ import annotations

import json

from forerun.core.structured import StructuredOutputsParams, depth
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, invalid
from forerun.text.parsing.tags import Tools
from forerun.text.tokenizer import Tokenizer

HEAD = 12
"""Letters for each token that may be: if so much of a long text is too long, all of it is."""
MARGIN = 16
"""Tokens by which the cut itself may change their number."""
COUNTED_NBYTES = 1_000_000
"""Bytes of a text that is only counted or taken apart, at most: it may be longer than the context."""


def too_long(
    num_prompt: int, limit: int, context: int, param: str = "messages", *, is_least: bool = False
) -> ApiError:
    """Refuse a prompt longer than the context, or than the server allows; `n_ctx` is llama-server's.

    `is_least`: it has more tokens than `num_prompt`, which is as far as they were counted.
    """
    most = f"This model's maximum context length is {context} tokens"
    if limit < context - 1:
        most = f"This server's maximum prompt length is {limit} tokens"
    what = "prediction" if param == "prediction" else "prompt"
    more = "more than " if is_least else ""
    return ApiError(
        400,
        f"{most}. However, your {what} has {more}{num_prompt} tokens, which exceeds the available context "
        "size. Please shorten it, or start the server with a larger --max-model-len or --max-prompt-len.",
        param=param,
        code="context_length_exceeded",
        type="exceed_context_size_error",  # llama-server's
        more={"n_prompt_tokens": num_prompt, "n_ctx": context},
        for_anthropic=f"{what} is too long: {num_prompt} tokens > {limit} maximum",
    )


def check_fits(text: str, tokenizer: Tokenizer, limit: int, context: int, param: str) -> None:
    """Raise ApiError if the text has too many bytes for `limit` tokens, or if its beginning has too many tokens."""
    if len(text) <= HEAD * limit:
        return
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    num_least = nbytes // tokenizer.longest
    if num_least <= limit:
        num_least = len(tokenizer.encode(text[: HEAD * limit], bos=False)) - MARGIN
    if num_least > limit:
        raise too_long(num_least, limit, context, param, is_least=True)


def check_counted(text: str, param: str) -> None:
    """Raise ApiError for a text that is too long even to be counted."""
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    if nbytes > COUNTED_NBYTES:
        raise invalid(
            f"the text has {nbytes} bytes, at most {COUNTED_NBYTES} are counted at once: "
            "send it in parts",
            param,
        )


def check_bounds(form: StructuredOutputsParams, config: ServerConfig, field: str) -> None:
    """Raise ApiError for a form that is larger or more deeply nested than the server allows."""
    _check_size(form.source, f"the {form.kind} of the structured output", config, field)
    if form.json is not None:
        check_depth(json.loads(str(form.json)), field, config)


def check_tools(tools: Tools, config: ServerConfig) -> None:
    """Raise ApiError for a tool that must be called, if its schema is larger than the server allows."""
    for name, schema in tools.items():
        what = f"the schema of the tool {name}"
        _check_size(json.dumps(schema, ensure_ascii=False), what, config, "tools")


def _check_size(text: str, what: str, config: ServerConfig, field: str) -> None:
    nbytes, limit = len(text.encode()), config.max_schema_kb
    if nbytes > limit * 1e3:
        raise invalid(
            f"{what} has {nbytes} bytes, the limit is {limit:g} kB (--max-schema-kb)", field
        )


def check_depth(given: object, field: str, config: ServerConfig) -> None:
    """Raise ApiError for what is more deeply nested than the server allows."""
    levels = depth(given)
    if levels > config.max_schema_depth:
        raise invalid(
            f"the schema in {field} is nested {levels} levels deep, the limit is "
            f"{config.max_schema_depth} (--max-schema-depth)",
            field,
        )
