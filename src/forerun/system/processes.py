"""What differs by operating system: Linux, other POSIX systems such as macOS, and Windows, side by side.

Descriptors, processes, and what the system tells of memory and processors. `csrc/platform.h` is the same for the
kernels. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    pass

if sys.platform == "win32":
    from ctypes import wintypes
else:
    import resource

READ_ONLY = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)  # a named pipe is opened without its writer, to be refused
    | getattr(os, "O_CLOEXEC", 0)  # Windows hands no descriptors on
    | getattr(os, "O_BINARY", 0)
)
"""Flags to open a file that is only read."""


def lower_priority(thread: threading.Thread | None = None, nice: int = 10) -> None:
    """Let a thread, by default the calling one, and it alone, yield to those that compute.

    Where a thread has no priority, do nothing.
    """
    if sys.platform == "linux":
        number = threading.get_native_id() if thread is None else thread.native_id
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, number or 0, nice)


def thread_seconds(thread: threading.Thread) -> float:
    """Return the processor's time that a running thread has taken, or the time where the system does not tell."""
    if sys.platform == "linux" and thread.ident is not None:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return time.monotonic()


def is_own(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or a folder belongs to the user of this process; Windows does not tell. Raises OSError."""
    return sys.platform == "win32" or os.stat(path).st_uid == os.geteuid()


def put_in_place(file: IO[bytes], name: str, target: str | os.PathLike[str]) -> None:
    """Give an open file, whose buffer is flushed, the place of what is there. Raises OSError."""
    if sys.platform == "win32":
        file.close()  # an open file cannot be renamed
    os.replace(name, target)


def allow_descriptors(wanted: int) -> int | None:
    """Ask for so many open files, and return how many there may be; None if the system sets no limit."""
    if sys.platform == "win32":
        return None
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):  # it stays as it is
            most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            if soft != resource.RLIM_INFINITY and soft < most:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                soft = most
        return None if soft == resource.RLIM_INFINITY else soft


def usable_cpus() -> set[int]:
    """Return the numbers of the processors that this process may run on."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def bind_thread(cpus: set[int]) -> bool:
    """Let this thread, and those that it starts, run on some processors only; returns whether the system can."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)
        return True
    return False


def most_resident_nbytes() -> int:
    """Return the most memory that this process has had, where /proc does not tell."""
    if sys.platform == "win32":
        counters = (
            ctypes.c_size_t * 9
        )()  # PROCESS_MEMORY_COUNTERS: two words of 32 bits, then sizes
        current_process = ctypes.windll.kernel32.GetCurrentProcess
        current_process.restype = wintypes.HANDLE
        tell = ctypes.windll.psapi.GetProcessMemoryInfo
        tell.argtypes = [wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD]
        tell(current_process(), counters, ctypes.sizeof(counters))
        return int(counters[1])
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def c_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, such as glibc's malloc_trim; None if it has none of that name."""
    if sys.platform == "win32":
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
