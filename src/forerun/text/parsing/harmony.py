"""gpt-oss's answers: messages with a channel each, "harmony".

    <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>text<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>

A message to a function is a call, one on the analysis channel is what the model thinks, all others are what it says.
"""

from __future__ import annotations

import re

from forerun.text.parsing.json_text import JsonText
from forerun.text.parsing.loose import resolved
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, Part, ReasoningPart
from forerun.text.parsing.tags import Tools

_BODY, _MARK = "<|message|>", re.compile(r"<\|[a-z]+\|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"to=(functions\.)?([\w.:/@#~+-]+)")
_LONGEST_MARK = 16

CHANNEL, FINAL, CALL = (
    "<|channel|>",
    f"<|channel|>final{_BODY}",
    "<|channel|>commentary to=functions.",
)
"""What the last message of an answer begins with; any, one to the reader, a call."""
THOUGHT = f"<|channel|>analysis{_BODY}"
"""What one before the last begins with."""
NEXT = "<|end|><|start|>assistant"
"""What stands between two messages of an answer."""
ARGUMENTS = f" <|constrain|>json{_BODY}"
"""What stands between a function's name and its arguments."""


_Body = ContentPart | ReasoningPart | ArgumentsPart


class HarmonyParser:
    """Split an answer into what is thought, said and called."""

    def __init__(
        self,
        with_calls: bool = True,
        with_reasoning: bool = True,
        *,
        in_text: bool = False,
        tools: Tools | None = None,
    ) -> None:
        """What is not told apart is text. `in_text`: the answer begins within one. `tools`: those that are offered."""
        self.num_calls = 0
        self._with_calls, self._with_reasoning = with_calls, with_reasoning
        self._tools = tools or {}
        self._held = ""
        self._kind: type[_Body] | None = ContentPart if in_text else None
        """What the body that is being read is; None in a head."""
        self._json = JsonText()

    def read(self, text: str, *, is_last: bool, is_cut: bool = False) -> list[Part]:
        """Split more text; `is_last` if none will follow. A cut call is none, if it was not handed on."""
        self._held += text
        parts: list[Part] = []
        while (
            found := self._read_head() if self._kind is None else self._read_body(is_last)
        ) is not None:
            parts += found
        if is_last and self._kind is None and self._held and not _MARK.search(self._held):
            parts.append(ContentPart(self._held))  # no message at all
            self._held = ""
        begun = [i for i, part in enumerate(parts) if isinstance(part, CallPart)]
        if is_cut and begun and self._kind is ArgumentsPart and not self._json.is_complete:
            self.num_calls -= 1
            parts = parts[: begun[-1]]
        return [part for part in parts if isinstance(part, CallPart) or part.text]

    def _read_head(self) -> list[Part] | None:
        head, mark, body = self._held.partition(_BODY)
        if not mark:
            return None
        self._held = body
        called, channel = _FUNCTION.search(head), _CHANNEL.search(head)
        name = "" if called is None else resolved(called[2], self._tools)
        is_tool = called is not None and (called[1] or name in self._tools)
        if is_tool and self._with_calls:
            self._kind, self._json = ArgumentsPart, JsonText()
            self.num_calls += 1
            return [CallPart(name)]
        is_thought = channel is not None and channel[1] == "analysis" and self._with_reasoning
        self._kind = ReasoningPart if is_thought else ContentPart
        return []

    def _read_body(self, is_last: bool) -> list[Part] | None:
        assert self._kind is not None
        starts = [at for end in _ENDS if (at := self._held.find(end)) >= 0]
        if starts:
            at, kind = min(starts), self._kind
            body, self._held, self._kind = self._held[:at], self._held[at:], None
            return [self._part(kind, body)]
        kept = (
            len(self._held)
            if is_last
            else self._held.find("<|", max(0, len(self._held) - _LONGEST_MARK))
        )
        if kept < 0:
            kept = len(self._held) - self._held.endswith("<")
        if not kept:
            return None
        body, self._held = self._held[:kept], self._held[kept:]
        return [self._part(self._kind, body)]

    def _part(self, kind: type[_Body], text: str) -> Part:
        if kind is ArgumentsPart and not self._json.is_complete:
            text = self._json.push(text)[0]
        return kind(text)
