"""Threads beside the main one; each says how it ends, and none inherits that from the thread that starts it.

A daemon thread is killed where it stands when the program ends, and inside native code that aborts the process. So what
works on weights, files or vocabularies is waited for, and asks `is_ending` between two pieces of long work.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

from forerun.system import processes

Work = Callable[[], object]


def start(name: str, work: Work, *, yields: bool = True) -> threading.Thread:
    """Start work that the end of the program waits for; `yields`: at low priority.

    Raises RuntimeError if the program ends already.
    """

    def run() -> None:
        if yields:
            processes.lower_priority()
        work()

    thread = threading.Thread(target=run, name=name, daemon=False)
    thread.start()
    return thread


def is_ending() -> bool:
    """Return whether the program waits for its threads to end."""
    return not threading.main_thread().is_alive()


def owned(name: str, work: Work, stop: Work) -> threading.Thread:
    """Return a thread, not started, that `stop` ends. If its owner has not, the end of the program does and waits."""

    def end() -> None:
        stop()
        thread.join()

    def run() -> None:
        atexit.register(end)
        try:
            work()
        finally:
            atexit.unregister(end)

    thread = threading.Thread(target=run, name=name, daemon=True)
    return thread


def watch(name: str, work: Work) -> threading.Thread:
    """Start work that the end of the program does not wait for: for what may never come, or what nothing interrupts."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def running(name: str) -> list[threading.Thread]:
    """Return the threads of a name."""
    return [thread for thread in threading.enumerate() if thread.name == name]


def join(name: str, timeout_s: float | None = None) -> bool:
    """Wait for the threads of a name, for so long at most; return whether all have ended."""
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    for thread in running(name):
        thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
    return not running(name)
