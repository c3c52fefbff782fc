"""What a prompt may be, and its token ids: text, ids, chat messages, and the dictionaries that vLLM takes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, cast

from forerun.core.errors import RequestError, short_repr, unknown
from forerun.text.chat_template import ChatTemplate
from forerun.text.messages import Message, Tools, check_tools, plain, render_unfinished
from forerun.text.tokenizer import Tokenizer
from forerun.text.tool_prompt import described

Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, object]
"""One prompt: text, token ids, chat messages, `{"prompt": text}`, `{"prompt_token_ids": ids}`."""

_KEYS = ("prompt", "prompt_token_ids")
TOLD_BY = ("system", "developer")
"""Roles of messages that are no user's words."""
MIN_INSTRUCTIONS = 256
"""Characters of instructions that are worth counting."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt's token ids, and its text where it has one."""

    token_ids: list[int]
    text: str | None = None
    num_instructions: int = 0
    """Tokens before the first words of a user, in a conversation: what the model is told, and its tools."""
    is_chat: bool = False
    """Whether a chat template has written it."""


def split(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the single prompts: a list of one for one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = items_of(prompts)
    if not items:
        return items
    is_array = getattr(items[0], "ndim", 0) == 1 and not hasattr(prompts, "ndim")
    is_prompt = is_array or isinstance(items[0], str | Sequence | Mapping)
    return items if is_prompt and not is_message(items[0]) else [items]


def conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    """Return the single conversations: a list of one for one conversation."""
    is_many = isinstance(messages, list | tuple) and bool(messages)
    is_one = not is_many or isinstance(messages[0], Mapping | str)
    return cast(list[Sequence[Message]], [messages] if is_one else messages)


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


def encode_all(prompts: Prompt | Sequence[Prompt], tokenizer: Tokenizer) -> list[Encoded]:
    """Return the token ids of one prompt or several. Raises RequestError."""
    return [encode(prompt, tokenizer) for prompt in split(prompts)]


def end_texts(encoded: list[Encoded], tokenizer: Tokenizer) -> list[Encoded]:
    """Put behind texts what the model wants where they are complete, as ones to embed are; ids are not changed."""
    for one in encoded:
        if one.text is not None:
            one.token_ids.extend(tokenizer.suffix_ids)
    return encoded


def encode_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    add_generation_prompt: bool = True,
    tools: Tools | None = None,
    chat_template: str | None = None,
    variables: Mapping[str, object] | None = None,
    continue_final_message: bool = False,
) -> Encoded:
    """Return the token ids of a conversation, as `Tokenizer.apply_chat_template` writes it. Raises RequestError.

    A template without a place for tools is told of them in the system message.
    """
    given = chat_template and tokenizer.template(ChatTemplate, chat_template)
    if tools and not (given or tokenizer).reads_tools:
        check_tools(tools)
        messages, tools = described(messages, tools), None

    def render(said: Sequence[Message], begins: bool = False) -> str:
        return tokenizer.apply_chat_template(
            said,
            add_generation_prompt=begins,
            tools=tools,
            chat_template=chat_template,
            variables=variables,
        )

    begun = continue_final_message and render_unfinished(messages, render)
    text = begun or render(messages, add_generation_prompt)
    encoded = Encoded(tokenizer.encode(text, bos=False), text, is_chat=True)
    return with_instructions(encoded, messages, tokenizer)


def with_instructions(
    encoded: Encoded, messages: Sequence[Message], tokenizer: Tokenizer
) -> Encoded:
    """Count the tokens of a written conversation before what a user says."""
    said = (one["content"] for one in plain(messages) if one["role"] not in TOLD_BY)
    words = str(next(said, None) or "").strip()
    # Where the same words stand in the instructions, fewer tokens are counted: never a user's.
    start = encoded.text.find(words) if encoded.text and words else 0
    if start < MIN_INSTRUCTIONS:
        return encoded
    assert encoded.text is not None
    ids = tokenizer.encode(encoded.text[:start], bos=False)
    same = (a == b for a, b in zip(ids, encoded.token_ids, strict=False))
    return replace(encoded, num_instructions=sum(takewhile(bool, same)))


def _encode_mapping(prompt: Mapping[str, object], tokenizer: Tokenizer) -> Encoded:
    for key, value in prompt.items():
        if key not in _KEYS and value is not None:
            raise RequestError(unknown("key of a prompt", key, _KEYS))
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"the 'prompt' of a dictionary must be text, got {short_repr(text)}")
    ids = prompt.get("prompt_token_ids")
    if ids is not None:
        return Encoded(_ids(items_of(ids)), text)
    if text is None:
        raise RequestError(
            "a prompt as a dictionary needs 'prompt' (text) or 'prompt_token_ids', got "
            f"{', '.join(map(str, prompt)) or 'nothing'}"
        )
    return Encoded(tokenizer.encode(text), text)


def items_of(value: Any) -> list[Any]:
    """Return the items of a list. Raises RequestError for anything else."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise RequestError(
            f"a prompt is text, token ids, chat messages or a dictionary, got {short_repr(value)}"
        )
    return [*value]


def _ids(items: list[Any]) -> list[int]:
    ids = []
    for item in items:
        try:
            ids.append(operator.index(item))
        except TypeError:
            message = f"token ids must be whole numbers, got {short_repr(item)}"
            raise RequestError(message) from None
    return ids
