"""The parts of an answer."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of what the model thinks before it says anything."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """The beginning of a tool call, with its name."""

    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of the last call's arguments, which are the text of a JSON object."""

    text: str


Part = ContentPart | ReasoningPart | CallPart | ArgumentsPart
