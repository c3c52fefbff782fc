"""Runs a program from stdin with limits and prints `passed` if it reaches its end. Started by `sandbox.py`.

Nothing of forerun is imported here: the process has an interpreter and its standard library, no more.
"""

from __future__ import annotations

import math
import os
import resource
import sys

# Audit events, and the first parts of their names, that a program has no business with.
FORBIDDEN = frozenset(
    (
        *("ctypes", "socket", "subprocess", "syslog", "pty", "fcntl", "shutil"),
        *("ftplib", "http", "imaplib", "poplib", "smtplib", "telnetlib", "urllib", "webbrowser"),
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
        *("os.kill", "os.killpg", "signal.pthread_kill", "resource.setrlimit", "resource.prlimit"),
        *("os.chflags", "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename"),
        *("os.rmdir", "os.symlink", "os.truncate", "os.utime", "os.setxattr", "os.removexattr"),
    )
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_BYTES = 1 << 20


def refuse(event: str, args: tuple[object, ...]) -> None:
    """An audit hook; it cannot be taken off again."""
    is_writing = event == "open" and isinstance(args[2], int) and args[2] & WRITING
    if is_writing or event in FORBIDDEN or event.partition(".")[0] in FORBIDDEN:
        raise PermissionError(f"not allowed here: {event}")


def limit(memory_mb: int, seconds: float) -> None:
    """Set the limits; none can be raised again."""
    for kind, most in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_CPU, math.ceil(seconds) + 1),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def main() -> None:
    """Read the program, set the limits, run it, print `passed` if it ends well."""
    program = sys.stdin.buffer.read().decode()
    verdict = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    limit(int(sys.argv[1]), float(sys.argv[2]))
    sys.addaudithook(refuse)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    os.write(verdict, b"passed")


if __name__ == "__main__":
    main()
