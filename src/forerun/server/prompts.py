"""Prompts as llama-server takes them: texts, token ids, both in one list, objects with a text, or lists of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forerun.core.errors import short_repr
from forerun.server.errors import ApiError
from forerun.text.prompt import Encoded

Part = str | int


class ReadText(Protocol):
    """Makes a text token ids; None for `bos` is as the model wants it."""

    def __call__(self, text: str, param: str, *, bos: bool | None = None) -> Encoded:
        """The token ids of a text that the field `param` holds."""
        ...


_FORMS = (
    "a text, token ids, a list of texts and ids, "
    '{"prompt_string": TEXT}, {"content": [{"type": "text", "text": TEXT}]}, or a list of these'
)


def split(given: object, field: str) -> list[list[Part]]:
    """The single prompts, each as texts and token ids in their order. Raises ApiError.

    A list with a token id in it is one prompt, a list without one is a list of prompts.
    """
    if isinstance(given, list) and not any(_is_id(one) for one in given):
        if not given:
            raise ApiError(400, f"{field} is empty: it must be {_FORMS}", param=field)
        return [_one(each, field) for each in given]
    return [_one(given, field)]


def encode(parts: list[Part], read_text: ReadText, field: str) -> Encoded:
    """The token ids of one prompt, after a BOS token before a text at its beginning if the model wants one."""
    if len(parts) == 1 and isinstance(text := parts[0], str):
        return read_text(text, field)
    ids: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += read_text(part, field, bos=False if number else None).token_ids
    return Encoded(ids)


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
    """The text of a prompt that is an object."""
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
