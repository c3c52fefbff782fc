"""Whether, how hard and how long a model thinks: what requests of all dialects say, as what chat templates read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator

from forerun.server.errors import must_be
from forerun.server.schema import NestedFields
from forerun.text.chat_template import THINKING_SWITCHES

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class Reasoning(NestedFields):
    """OpenAI's `reasoning`, and OpenRouter's."""

    effort: str | None = None
    """As `reasoning_effort`."""
    enabled: bool | None = None
    """Whether the model thinks."""
    max_tokens: int | None = None
    """Tokens of a thought."""


class ThinkingOptions(NestedFields):
    """Anthropic's `thinking`."""

    type: Literal["enabled", "adaptive", "disabled"]
    """Whether the model thinks; adaptive: as it likes."""
    budget_tokens: int | None = None
    """Tokens of a thought."""


def _of_switch(given: object) -> object:
    """Read a bare true or false, which others than Anthropic's clients send."""
    return {"type": "enabled" if given else "disabled"} if isinstance(given, bool) else given


ThinkingField = Annotated[
    ThinkingOptions | None,
    BeforeValidator(_of_switch, json_schema_input_type=ThinkingOptions | bool | None),
]


@dataclass(frozen=True, slots=True)
class Thought:
    """What a request says of it; None: nothing."""

    is_on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    """Tokens."""

    @classmethod
    def read(
        cls,
        reasoning: Reasoning | None,
        effort: str | None,
        thinking: ThinkingOptions | None,
        is_on: bool | None,
        budget: int | None,
    ) -> Thought:
        """Read OpenAI's fields, Anthropic's `thinking` and Qwen's switches. Raises ApiError."""
        reasoning = reasoning or Reasoning()
        effort = reasoning.effort if effort is None else effort
        if effort is not None and effort not in EFFORTS:
            raise must_be("reasoning_effort", f"one of {', '.join(EFFORTS)}", effort)
        kind = None if thinking is None else thinking.type
        own = None if thinking is None else thinking.budget_tokens
        own = reasoning.max_tokens if own is None else own
        budget = own if budget is None else budget
        said = [is_on, reasoning.enabled, {"enabled": True, "disabled": False}.get(str(kind))]
        said += [
            None if effort is None else effort != "none",
            None if budget is None else budget != 0,
        ]
        return cls(next((one for one in said if one is not None), None), effort, budget)

    @property
    def bound(self) -> int | None:
        """The budget, if it is one: a negative one bounds nothing, and with 0 there is no thought."""
        return self.budget if self.is_on and (self.budget or 0) > 0 else None

    def variables(self, names: Collection[str]) -> dict[str, object]:
        """Write it as the variables that a template with these names reads."""
        effort = None if self.effort == "none" else self.effort
        budget = None if self.budget is None or self.budget < 0 else self.budget
        switches = {
            **dict.fromkeys(THINKING_SWITCHES, self.is_on),
            "reasoning_effort": effort,
            **dict.fromkeys(("thinking_budget", "reasoning_budget"), budget),
        }
        return {
            name: value for name, value in switches.items() if value is not None and name in names
        }
