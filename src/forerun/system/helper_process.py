"""A Python module in a process of its own, which answers one question at a time within bounds of time and memory.

For what others choose and what may take for ever: a chat template, which is a program of a model's file, and grammars
of clients, which a library compiles in native code that no thread can interrupt. The process has no environment but
where Python's modules are, writes no files, opens few, and ends with its input, so also when its parent is
killed. It is not a sandbox: it runs as the same user, who may read files and reach the network.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import Signals
from typing import IO, Any, cast
from weakref import finalize

from forerun.core.errors import RequestError
from forerun.system import background

STACK_NBYTES = 120 << 20
"""Of its main thread, at most: what is nested is read recursively."""
NUM_FILES = 16
LATE_S = 0.5
"""Time that it has to end by itself; then it is killed: it may have been stopped."""
POLL_S = 0.1
"""Time after which the waiting caller is asked whether it still wants the answer."""


class HelperProcess:
    """Starts a module whose program is `answer_questions`."""

    def __init__(self, module: str, what: str, max_s: float, max_nbytes: int) -> None:
        """`what` it works for is named in errors; a question may take `max_s`, the process `max_nbytes` of memory.

        Memory is bounded where the system can (not on macOS and Windows).
        """
        self._what, self._max_s = what, max_s
        root = str(Path(__file__).parents[2])  # -P: nothing is imported from the working directory
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        kept = {
            name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(max_s), str(max_nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "1"},
            start_new_session=True,  # Ctrl-C is for the server
        )
        self._number = 0
        self._questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        given = (self._process, self._questions, self._answers)
        background.watch("forerun-helper", partial(_converse, *given))
        self._end = finalize(self, _end, self._process, self._questions)

    @property
    def is_alive(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def ask(self, question: object, is_wanted: Callable[[], bool] = lambda: True) -> Any:
        """Return what it answers. Raises RequestError for what it refuses, beyond a bound, and where it has ended.

        So, too, once `is_wanted` says no. Raises TypeError, ValueError and RecursionError for a question that is not
        JSON. Where no answer came the process is killed, lest a late one be read as the next question's.
        """
        self._number += 1
        line = json.dumps([self._number, question]).encode() + b"\n"
        try:
            answer = self._answered(line, is_wanted)
            number, found = json.loads(answer)
            if number != self._number:
                raise RequestError(f"the process of {self._what} lost count")
        except BaseException:
            self.close()
            raise
        if "error" in found:
            raise RequestError(found["error"], option=found["option"])
        return found["answer"]

    def close(self) -> None:
        """End it."""
        self._end()

    def _answered(self, line: bytes, is_wanted: Callable[[], bool]) -> bytes:
        start_s, answer = time.monotonic(), None
        self._questions.put(line)
        while answer is None:
            with suppress(queue.Empty):
                answer = self._answers.get(timeout=POLL_S)
            if answer is None and time.monotonic() - start_s > self._max_s + LATE_S:
                answer = b""
            elif answer is None and not is_wanted():
                raise RequestError("the request has ended")
        if answer.endswith(b"\n"):
            return answer
        if time.monotonic() - start_s >= self._max_s:
            raise RequestError(f"{self._what} takes more than {self._max_s:g} s")
        self.close()
        raise RequestError(f"the process of {self._what} {_how(self._process.wait())}")


def _how(status: int) -> str:
    """Say how a process ended; what is beyond its memory aborts it, in Python's words or a library's."""
    name = Signals(-status).name if -status in {*Signals} else f"status {status}"
    if name == "SIGSEGV":
        return "crashed (SIGSEGV)"
    return f"ended ({name}): its memory is limited"


def _converse(
    process: subprocess.Popen[bytes],
    questions: queue.SimpleQueue[bytes],
    answers: queue.SimpleQueue[bytes],
) -> None:
    """Write questions and read answers, up to an empty one: in a thread that may be left waiting."""
    asked, said = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    with suppress(OSError, ValueError):  # it has ended
        while question := questions.get():
            asked.write(question)
            asked.flush()
            answers.put(said.readline())
    answers.put(b"")
    for pipe in (asked, said):
        with suppress(OSError):
            pipe.close()


def _end(process: subprocess.Popen[bytes], questions: queue.SimpleQueue[bytes]) -> None:
    process.kill()
    process.wait()
    questions.put(b"")


def answer_questions(answer: Callable[[Any], object]) -> None:
    """Answer the parent's requests, each within the limits that it has set.

    A RequestError of `answer` is raised again in the process that asked.
    """
    max_s, max_nbytes = float(sys.argv[1]), int(sys.argv[2])
    _set_bounds(max_nbytes)
    for line in sys.stdin.buffer:
        # a thread of C ends the process, also where one operation of Python's takes for ever
        faulthandler.dump_traceback_later(max_s, exit=True)
        number, question = json.loads(line)
        try:
            found = json.dumps([number, {"answer": answer(question)}])
        except RequestError as error:
            found = json.dumps([number, {"error": str(error), "option": error.option}])
        except MemoryError:
            why = f"it takes more than {max_nbytes >> 20} MiB of memory"
            found = json.dumps([number, {"error": why, "option": ""}])
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.buffer.write(found.encode() + b"\n")
        sys.stdout.buffer.flush()


def bound_growth(nbytes: int) -> None:
    """Bound the memory of this process to so much more than it has, where the system can."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + nbytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _set_bounds(max_nbytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has none
        return
    bounds = {
        resource.RLIMIT_AS: max_nbytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: NUM_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in bounds.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    with suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_NBYTES, hard))
