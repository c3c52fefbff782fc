"""A chat template in a process of its own, which has limits of time and memory: a model's file may hold any program.

The process imports `chat_template` and Jinja, nothing else: 20 MB, a tenth of a second. It reads a line of JSON and
answers with one, and ends with its input, so also when whoever started it is killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from forerun.core.errors import RequestError
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
            return str(process.ask([messages, add_generation_prompt, tools, variables]))

    def close(self) -> None:
        """End its processes."""
        with self._lock:
            self._is_closed = True
            ended, self._idle = [*self._idle, *self._running], []
        for process in ended:
            process.close()

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Lend a process that nobody uses: as many run as threads render at once."""
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


class _Process:
    """One process, which is asked one thing at a time."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        root = str(Path(__file__).parents[2])  # -P: nothing is imported from the working directory
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(max_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the server
        )
        self.names = frozenset[str]()
        self._is_prepared = False

    @property
    def is_alive(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def prepare(self, template: list[str]) -> None:
        """Compile a template, once. Raises RequestError if it is not valid."""
        if not self._is_prepared:
            self.names, self._is_prepared = frozenset(self.ask(template)), True

    def ask(self, given: object) -> Any:
        """Return what it answers. Raises RequestError for what the template refuses, and where it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            line = json.dumps(given).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the chat template cannot take these messages: {error}") from error
        start_s, answer = time.monotonic(), b""
        with suppress(OSError, ValueError):  # it has ended or was closed, as the empty answer says
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer.endswith(b"\n"):
            self.close()
            raise RequestError(self._why_ended(time.monotonic() - start_s))
        found = json.loads(answer)
        if "error" in found:
            raise RequestError(found["error"], option=found.get("option", ""))
        return found["answer"]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _why_ended(self, seconds: float) -> str:
        if seconds >= self._max_s:
            return f"the chat template takes more than {self._max_s:g} s for these messages"
        status = self._process.returncode
        return f"the process of the chat template ended with status {status}; its memory is limited"


def main() -> None:
    """Compile the template of the first line, and render the conversations of the others, each in so many seconds."""
    _limit_memory()
    template: ChatTemplate | None = None
    for line in sys.stdin.buffer:
        # a thread of C ends the process, also where one operation of Python's takes for ever
        faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
        try:
            given = json.loads(line)
            if template is None:
                template = ChatTemplate(*given)
                tools = ["tools"] * template.reads_tools
                answer = json.dumps({"answer": [*template.names, *tools]})
            else:
                answer = json.dumps({"answer": template.render(*given)})
        except RequestError as error:
            answer = json.dumps({"error": str(error), "option": error.option})
        except MemoryError:
            most = MAX_MEMORY_NBYTES >> 20
            answer = json.dumps(
                {"error": f"the chat template takes more than {most} MiB of memory"}
            )
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has none
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_NBYTES, MAX_MEMORY_NBYTES))


if __name__ == "__main__":
    main()
