"""What a terminal shows by itself while something is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


@contextmanager
def keys_unseen(stream: TextIO) -> Iterator[None]:
    """Keep the terminal that a stream is, if it is one, from writing `^C` into the text for Ctrl-C, until the end."""
    try:
        import termios  # not on Windows
    except ModuleNotFoundError:
        yield
        return

    def echo(*, is_seen: bool) -> bool:
        """Set whether control characters are written; return whether they were."""
        # Setting it from the background would stop this process.
        if not stream.isatty() or os.tcgetpgrp(stream.fileno()) != os.getpgrp():
            return False
        settings = termios.tcgetattr(stream.fileno())
        was_seen = bool(settings[3] & termios.ECHOCTL)
        settings[3] = settings[3] | termios.ECHOCTL if is_seen else settings[3] & ~termios.ECHOCTL
        termios.tcsetattr(stream.fileno(), termios.TCSANOW, settings)
        return was_seen

    was_seen = False
    with suppress(OSError, termios.error):
        was_seen = echo(is_seen=False)
    try:
        yield
    finally:
        if was_seen:
            with suppress(OSError, termios.error):
                echo(is_seen=True)
