"""Prompts as llama-server takes them, and the bounds of texts: what cannot fit is refused before it is encoded.

To encode takes a core for seconds a megabyte, and a hundred times the text's memory: `BodyQueue` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.core.errors import short_repr
from forerun.server.errors import ApiError, too_long
from forerun.text.tokenizer import Tokenizer

Part = str | int

HEAD = 12
"""Letters for each token that may be: if so much of a long text is too long, all of it is."""
MARGIN = 16
"""Tokens by which the cut itself may change their number."""
COUNTED_NBYTES = 1_000_000
"""Bytes of a text that is only counted or taken apart, at most: it may be longer than the context."""
_FORMS = (
    "a text, token ids, a list of texts and ids, "
    '{"prompt_string": TEXT}, {"content": [{"type": "text", "text": TEXT}]}, or a list of these'
)


def split(given: object, field: str) -> list[list[Part]]:
    """Split a field into prompts, each as texts and token ids in their order. Raises ApiError.

    A list with a token id in it is one prompt, a list without one is a list of prompts.
    """
    if isinstance(given, list) and not any(_is_id(one) for one in given):
        if not given:
            raise ApiError(400, f"{field} is empty: it must be {_FORMS}", param=field)
        return [_one(each, field) for each in given]
    return [_one(given, field)]


def _one(given: object, field: str) -> list[Part]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return [_text_of(given, field)]
    if (
        isinstance(given, list)
        and given
        and all(_is_id(one) or isinstance(one, str) for one in given)
    ):
        return given
    raise ApiError(400, f"{field} must be {_FORMS}, got {short_repr(given)}", param=field)


def _text_of(given: Mapping[str, Any], field: str) -> str:
    """Find the text of a prompt that is an object."""
    if given.get("multimodal_data"):
        raise ApiError(
            400, f"{field} must be text: this server reads no images or sounds", param=field
        )
    text = given.get("prompt_string")
    parts = given.get("content")
    if text is None and isinstance(parts, list) and parts:
        texts = [_part(one, field) for one in parts]
        text = "".join(texts)
    if not isinstance(text, str):
        raise ApiError(400, f"{field} must be {_FORMS}, got {short_repr(given)}", param=field)
    return text


def _part(given: object, field: str) -> str:
    text = given.get("text") if isinstance(given, Mapping) and given.get("type") == "text" else None
    if not isinstance(text, str):
        message = (
            f'a part of {field} must be {{"type": "text", "text": TEXT}}, got {short_repr(given)}'
        )
        raise ApiError(400, message, param=field)
    return text


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
        raise ApiError(
            400,
            f"the text has {nbytes} bytes, at most {COUNTED_NBYTES} are counted at once: "
            "send it in parts",
            param=param,
        )
