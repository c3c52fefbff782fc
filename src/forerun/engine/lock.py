"""The lock that the loops of one model share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

from forerun.system.signals import handled_later


class EngineLock:
    """Keeps all threads but one from a model. Handlers of signals wait until it is released, and so does `os.fork`.

    It is fair: a thread that steps on and on would else keep those out that wait for their events. Its holder may take
    it again: a sink may ask the engine something.
    """

    all: ClassVar[WeakSet[EngineLock]] = WeakSet()

    def __init__(self) -> None:
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        EngineLock.all.add(self)

    @contextmanager
    def held(self, *, waits: bool = True) -> Iterator[bool]:
        """Hold the lock, after those that came before. Unless it `waits`, yield False if a thread has it."""
        if self._owner == threading.get_ident():
            yield waits
            return
        with handled_later():
            if waits:
                with self._turn:  # the thread that waits for the lock has it
                    self._lock.acquire()
            elif not self._lock.acquire(blocking=False):
                yield False
                return
            self._owner = threading.get_ident()
            try:
                yield True
            finally:
                self._owner = None
                self._lock.release()

    def before_fork(self) -> None:
        """Wait for the lock, so that no thread is using the model in the child."""
        if self._owner != threading.get_ident():
            self._turn.acquire()
            self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release what `before_fork` took."""
        if self._owner != threading.get_ident():
            self._lock.release()
            self._turn.release()

    def after_fork_in_child(self) -> None:
        """Make it anew: the threads that wait for it are in the parent alone."""
        self._turn, self._lock = threading.Lock(), threading.Lock()
        if self._owner == threading.get_ident():
            self._lock.acquire()


def _for_each_lock(call: Callable[[EngineLock], None]) -> None:
    for lock in [*EngineLock.all]:
        call(lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _for_each_lock(EngineLock.before_fork),
        after_in_parent=lambda: _for_each_lock(EngineLock.after_fork_in_parent),
        after_in_child=lambda: _for_each_lock(EngineLock.after_fork_in_child),
    )
