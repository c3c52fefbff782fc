"""Parts of OpenAI's documents that the server and `compat.llama_cpp` write alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason, TokenLogprob
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart
from forerun.text.tokenizer import TextStream, Tokenizer

Document = dict[str, Any]


def text_of(parts: Sequence[Part], kind: type[ContentPart | ReasoningPart] = ContentPart) -> str:
    """Join the texts of one kind."""
    return "".join(part.text for part in parts if isinstance(part, kind))


def delta_of(parts: Sequence[Part], num_calls: int) -> Document:
    """Write what a chat's chunk adds to its message, of which `num_calls` calls had begun before.

    Reasoning has the names of llama-server and DeepSeek and of vLLM.
    """
    text, reasoning, calls = text_of(parts), text_of(parts, ReasoningPart), _calls(parts, num_calls)
    delta: Document = {}
    if reasoning:
        delta |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if text:
        delta["content"] = text
    return delta | ({"tool_calls": calls} if calls else {})


def message_of(parts: Sequence[Part]) -> Document:
    """Write a chat's whole message."""
    delta = delta_of(parts, 0)
    calls = delta.get("tool_calls", ())
    text = delta.pop("content", None if calls else "")
    for call in calls:
        del call["index"]
    return {"role": "assistant", "content": text, "refusal": None, **delta}


def _calls(parts: Sequence[Part], index: int) -> list[Document]:
    """Write one entry a call, the first new one with this index: clients look for no second one in a chunk."""
    calls: dict[int, Document] = {}
    index -= 1
    for part in parts:
        if isinstance(part, CallPart):
            index += 1
            function = {"name": part.name, "arguments": ""}
            calls[index] = {"index": index, "id": part.id, "type": "function", "function": function}
        elif isinstance(part, ArgumentsPart):
            call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
            call["function"]["arguments"] += part.text
    return [*calls.values()]


def reason_of(reason: FinishReason | None, num_calls: int) -> str | None:
    """Say why a completion ended, by OpenAI's names."""
    if reason is FinishReason.STOP and num_calls:
        return "tool_calls"
    return None if reason is None else reason.value


class Places:
    """Where the texts of tokens begin in the text that they make: parts of a character at that character."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams | None = None) -> None:
        """Without `params` control tokens are part of the text."""
        hides = params is not None and params.skip_special_tokens
        self._stream, self._at = TextStream(tokenizer, skip_special=hides), 0

    def next(self, token: int) -> int:
        """Return where the text of one more token begins."""
        at = self._at
        self._at += len(self._stream.push([token]))
        return at


def completion_logprobs(
    tokenizer: Tokenizer, scored: Sequence[TokenLogprob], places: Places
) -> Document:
    """Write log-probabilities of a completion, and where the tokens' texts begin."""
    return {
        "tokens": [tokenizer.text_of(one.token_id) for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        "top_logprobs": [_tops(tokenizer, one) for one in scored],
        "text_offset": [places.next(one.token_id) for one in scored],
    }


def _tops(tokenizer: Tokenizer, one: TokenLogprob) -> Document:
    """Write the likeliest tokens by their texts, and by their ids where another one has the same text."""
    own, found = tokenizer.text_of(one.token_id), dict[str, float]()
    others = [pair for pair in one.top if pair[0] != one.token_id]
    pairs = one.top if len(others) < len(one.top) else (*one.top, (one.token_id, one.logprob))
    for token, value in pairs:
        text = tokenizer.text_of(token)
        is_taken = token != one.token_id and (text == own or text in found)
        found[f"token_id:{token}" if is_taken else text] = value
    return found


def chat_logprobs(tokenizer: Tokenizer, scored: Sequence[TokenLogprob]) -> Document:
    """Write log-probabilities of a chat's answer."""

    def entry(token: int, value: float) -> Document:
        spelled = tokenizer.token_bytes(token)
        return {
            "token": tokenizer.text_of(token),
            "logprob": value,
            "bytes": None if spelled is None else [*spelled],
        }

    def whole(one: TokenLogprob) -> Document:
        top = [entry(token, value) for token, value in one.top]
        return entry(one.token_id, one.logprob) | {"top_logprobs": top}

    return {"content": [whole(one) for one in scored]}
