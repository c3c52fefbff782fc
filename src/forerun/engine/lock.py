"""The lock of a model: one thread at a time steps it, in the order of asking."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

from forerun.core.signals import handled_later


class EngineLock:
    """A fair, reentrant lock that the loops of one model share. Signal handlers wait until it is released.

    `os.fork` waits for it, so that no thread is using the model in the child.
    """

    all: ClassVar[WeakSet[EngineLock]] = WeakSet()

    def __init__(self) -> None:
        self._queue, self._lock = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._jobs: deque[Callable[[], object]] = deque()
        EngineLock.all.add(self)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock: only this thread may touch the engine. Nested calls pass."""
        if self._owner == threading.get_ident():
            yield
            return
        with handled_later():
            with self._queue:  # without it a thread that steps on and on would always be first
                self._lock.acquire()
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._release()

    def call_when_free(self, job: Callable[[], object]) -> None:
        """Call a function that does not raise: now, or when the lock is released. Never waits.

        So garbage may be collected at any moment, also where this thread is about to take the lock or has it.
        """
        with handled_later():
            self._jobs.append(job)
            if self._lock.acquire(blocking=False):
                self._owner = threading.get_ident()
                self._release()

    def _release(self) -> None:
        """Do the jobs and release the lock; take it again for those that came in between."""
        while True:
            while self._jobs:
                self._jobs.popleft()()
            self._owner = None
            self._lock.release()
            if not (self._jobs and self._lock.acquire(blocking=False)):
                return
            self._owner = threading.get_ident()

    def before_fork(self) -> None:
        """Wait until the lock is free, and keep other threads from it."""
        if self._owner != threading.get_ident():
            self._queue.acquire()
            self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release what `before_fork` took."""
        if self._owner != threading.get_ident():
            self._owner = threading.get_ident()
            self._release()
            self._queue.release()

    def after_fork_in_child(self) -> None:
        """Make the lock free: the threads that wait for it are in the parent only."""
        self._queue, self._lock = threading.Lock(), threading.Lock()
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
