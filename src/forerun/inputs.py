"""Prompts as dictionaries, under vLLM's names."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[None]


class TokensPrompt(TypedDict):
    """A prompt as token ids; its text, if it is given, is what outputs show."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[None]
