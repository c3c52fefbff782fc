"""What a task is: how its prompts are asked, and which answers are right. A module of this folder implements it."""

from __future__ import annotations

from typing import Protocol

from forerun.core.types import TaskPrompt


class Task(Protocol):
    """One file of this folder. Its prompts come from a file of the user's, see `hub/prompt_sets.py`."""

    MAX_TOKENS: int
    """Tokens an answer may have unless the user says otherwise."""
    RUNS_CODE: bool
    """True if `is_right` runs what the model wrote."""

    def question(self, prompt: TaskPrompt) -> str:
        """The user's message."""
        ...

    def is_right(self, prompt: TaskPrompt, answer: str) -> bool:
        """The verdict. Raises ConfigError if the prompt's `reference` is not what this task needs."""
        ...
