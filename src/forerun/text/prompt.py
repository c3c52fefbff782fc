"""What a prompt may be, and its token ids: text, ids, chat messages, and the dictionaries vLLM and tokenizers write.

Ids come as a list or an array: a row is a prompt, and a table of rows is a batch of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.core.errors import RequestError, short_repr, unknown
from forerun.text.messages import Message, Tools
from forerun.text.tokenizer import Tokenizer


class Array(Protocol):
    """An array of NumPy or the like."""

    def tolist(self) -> Any:
        """Return the numbers as (nested) lists."""
        ...


Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, object] | Array
"""One prompt: text, token ids, chat messages, `{"prompt": text}`, `{"prompt_token_ids": ids}`, `tokenizer(text)`."""

_KEYS = ("prompt", "prompt_token_ids", "input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt's token ids, and its text where it has one."""

    token_ids: list[int]
    text: str | None = None


def split(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the single prompts: a list of one for one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):
        return _rows(prompts)
    items = [_to_list(item) for item in items_of(prompts)]
    if items and (not isinstance(items[0], str | Sequence | Mapping) or is_message(items[0])):
        return [items]
    return [prompt for item in items for prompt in (_rows(item) if _is_dict(item) else [item])]


def is_message(value: object) -> bool:
    """Return True for what is written as one chat message."""
    return isinstance(value, Mapping) and "role" in value


def encode(prompt: Prompt, tokenizer: Tokenizer) -> Encoded:
    """Return the token ids of one prompt; chat messages go through the model's template. Raises RequestError."""
    if isinstance(prompt, str):
        return Encoded(tokenizer.encode(prompt), prompt)
    if isinstance(prompt, Mapping):
        return _encode_mapping(prompt, tokenizer)
    items = items_of(prompt)
    if items and is_message(items[0]):
        return encode_chat(items, tokenizer)
    return Encoded(_ids(items))


def encode_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    add_generation_prompt: bool = True,
    tools: Tools | None = None,
    chat_template: str | None = None,
    variables: Mapping[str, object] | None = None,
) -> Encoded:
    """Return the token ids of a conversation, as `Tokenizer.apply_chat_template` writes it. Raises RequestError."""
    text = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        chat_template=chat_template,
        variables=variables,
    )
    return Encoded(tokenizer.encode(text, bos=False), text)


def _encode_mapping(prompt: Mapping[str, object], tokenizer: Tokenizer) -> Encoded:
    for key, value in prompt.items():
        if key not in _KEYS and value is not None:
            raise RequestError(unknown("key of a prompt", key, _KEYS[:3]))
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"the 'prompt' of a dictionary must be text, got {short_repr(text)}")
    ids = prompt.get("prompt_token_ids")
    ids = prompt.get("input_ids") if ids is None else ids
    if ids is not None:
        return Encoded(_ids(items_of(ids)), text)
    if text is None:
        raise RequestError(
            "a prompt as a dictionary needs 'prompt' (text) or 'prompt_token_ids', got "
            f"{', '.join(map(str, prompt)) or 'nothing'}"
        )
    return Encoded(tokenizer.encode(text), text)


def _rows(prompt: Mapping[str, object]) -> list[Prompt]:
    """Return prompts of a tokenizer's output, without the padding its mask names; another dictionary is one prompt."""
    if prompt.get("input_ids") is None:
        return [prompt]
    rows, given = items_of(prompt["input_ids"]), prompt.get("attention_mask")
    mask = None if given is None else items_of(given)
    if not rows or not isinstance(_to_list(rows[0]), Sequence):
        rows, mask = [rows], None if mask is None else [mask]
    if mask is None:
        return rows
    try:
        return [_unmasked(*pair) for pair in zip(rows, mask, strict=True)]
    except ValueError as error:
        raise RequestError("attention_mask must have the shape of input_ids") from error


def _unmasked(row: Any, mask: Any) -> list[int]:
    return [i for i, is_real in zip(items_of(row), items_of(mask), strict=True) if is_real]


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping) and not is_message(value)


def _to_list(value: Any) -> Any:
    """Return arrays as lists and numbers, all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def items_of(value: Any) -> list[Any]:
    """Return the numbers of a list or an array. Raises RequestError for anything else."""
    items = _to_list(value)
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__iter__"):
        raise RequestError(
            f"a prompt is text, token ids, chat messages or a dictionary, got {short_repr(value)}"
        )
    return [*items]


def _ids(items: list[Any]) -> list[int]:
    try:
        return [operator.index(_to_list(item)) for item in items]
    except TypeError:
        wrong = next(item for item in items if not hasattr(_to_list(item), "__index__"))
        raise RequestError(f"token ids must be whole numbers, got {short_repr(wrong)}") from None
