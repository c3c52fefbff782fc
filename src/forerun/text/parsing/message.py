"""A whole answer as a chat message: what the model thinks, says and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forerun.text.parsing.parser import AnswerParser
from forerun.text.parsing.parts import ArgumentsPart, CallPart, ContentPart, ReasoningPart


class ToolCall(dict[str, Any]):
    """A call as OpenAI writes it, read by items as in JSON or by attributes as of its client: `call.function.name`.

    >>> call = ToolCall({"function": {"name": "f"}})
    >>> call.function.name == call["function"]["name"]
    True
    """

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"a call has no {name}, only {', '.join(self)}") from None
        return ToolCall(value) if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """What stands in an answer, as OpenAI's chat completions give it."""

    content: str | None = None
    """What it says; None if it only calls."""
    reasoning: str | None = None
    """What it thinks before."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """`{"id": ..., "type": "function", "function": {"name": ..., "arguments": JSON}}`."""

    @classmethod
    def of(cls, text: str, parser: AnswerParser, *, is_cut: bool = False) -> AnswerMessage:
        """Split a text that has ended; `is_cut` by a limit."""
        said, thought, calls = "", "", list[ToolCall]()
        for part in parser.read(text, is_last=True, is_cut=is_cut):
            match part:
                case ContentPart(piece):
                    said += piece
                case ReasoningPart(piece):
                    thought += piece
                case CallPart(name):
                    function = {"name": name, "arguments": ""}
                    calls.append(ToolCall(id=part.id, type="function", function=function))
                case ArgumentsPart(piece):
                    calls[-1]["function"]["arguments"] += piece
        return cls(said if said or not calls else None, thought or None, calls)

    def document(self) -> dict[str, object]:
        """Write the message that a conversation goes on with."""
        fields = {"reasoning_content": self.reasoning, "tool_calls": self.tool_calls}
        given = {name: value for name, value in fields.items() if value}
        return {"role": "assistant", "content": self.content, **given}
