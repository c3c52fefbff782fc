"""A chat template in a process of its own, which has limits of time and memory: a model's file may hold any program.

The process imports `chat_template` and Jinja, nothing else: 20 MB, a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from forerun.core.errors import RequestError
from forerun.system.helper_process import HelperProcess, answer_questions
from forerun.text.chat_template import ChatTemplate
from forerun.text.messages import Message, Tools

MAX_S = 5.0
"""Seconds that a template may take: 10,000 turns take a tenth of them."""
MAX_MEMORY_NBYTES = 512 << 20
"""Memory of its process, Python's included, where the system has such a limit (not macOS and Windows)."""


class TemplateProcess:
    """Renders as `ChatTemplate` does, with its errors, for any thread. A process starts when it is first needed."""

    def __init__(
        self, source: str, bos_token: str, eos_token: str, *, max_s: float = MAX_S
    ) -> None:
        self._template, self._max_s = [source, bos_token, eos_token], max_s
        self._lock, self._is_closed = threading.Lock(), False
        self._idle: list[_Process] = []
        self._running: set[_Process] = set()

    @cached_property
    def names(self) -> frozenset[str]:
        """What the template reads besides the messages, `tools` among it. Raises RequestError if it is not valid."""
        with self._process() as process:
            return process.names

    @property
    def reads_tools(self) -> bool:
        """True if the template has a place for tools. Raises RequestError if it is not valid."""
        return "tools" in self.names

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Tools | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as text. Raises RequestError as `ChatTemplate.render`, and beyond a limit."""
        with self._process() as process:
            return process.render([messages, add_generation_prompt, tools, variables])

    def close(self) -> None:
        """End its processes."""
        with self._lock:
            self._is_closed = True
            ended, self._idle = [*self._idle, *self._running], []
        for process in ended:
            process.close()

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Lend an idle process: as many run as threads render at once."""
        with self._lock:
            if self._is_closed:
                raise RequestError("the chat template is closed: the server ends")
            while self._idle and not self._idle[-1].is_alive:
                self._idle.pop().close()
            process = self._idle.pop() if self._idle else _Process(self._max_s)
            self._running.add(process)
        try:
            process.prepare(self._template)
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
                is_kept = process.is_alive and not self._is_closed
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                process.close()


class _Process(HelperProcess):
    """One process, which is asked one thing at a time."""

    def __init__(self, max_s: float) -> None:
        super().__init__(__name__, "the chat template", max_s, MAX_MEMORY_NBYTES)
        self.names = frozenset[str]()
        self._is_prepared = False

    def prepare(self, template: list[str]) -> None:
        """Compile a template, once. Raises RequestError if it is not valid."""
        if not self._is_prepared:
            self.names, self._is_prepared = frozenset(self.ask(template)), True

    def render(self, given: object) -> str:
        """Return a conversation as text. Raises RequestError."""
        try:
            return str(self.ask(given))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the chat template cannot take these messages: {error}") from error


def main() -> None:
    """Compile the template of the first question, and render the conversations of the others."""
    template: ChatTemplate | None = None

    def answer(given: Any) -> object:
        nonlocal template
        if template is not None:
            return template.render(*given)
        template = ChatTemplate(*given)
        return [*template.names, *(["tools"] * template.reads_tools)]

    answer_questions(answer)


if __name__ == "__main__":
    main()
