"""What the user of `forerun chat` types: in a terminal with line editing and history, else a turn a line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from forerun.core.errors import ConfigError

PROMPT, MORE = "> ", "... "
HISTORY_LEN = 1000
"""Lines that are kept; older ones go."""

_BLOCK = re.compile(r'(/\S+\s+)?"""(.*)', re.DOTALL)


class Lines:
    """Reads turns from stdin. Prompts are shown only where someone types."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()

    def turn(self) -> str:
        r"""Read the next turn. A message that begins with a slash has a space before it, a command has none.

        A \\ at the end of a line joins the next; a text in triple quotes has as many lines as it likes.
        Raises EOFError at the end of the input, and ConfigError for bytes that are no text.
        """
        line = self._line(PROMPT)
        with suppress(EOFError):  # the end of the input ends the text, too
            if (block := _BLOCK.match(line)) is not None:
                return self._block(*block.groups(default=""))
            while line.endswith("\\"):
                line = line[:-1] + "\n"
                line += self._line(MORE)
        return line.rstrip() if line.startswith("/") else _message(line)

    def _block(self, command: str, text: str) -> str:
        with suppress(EOFError):
            while '"""' not in text:
                text += "\n" + self._line(MORE)
        text = text.partition('"""')[0].strip("\n")
        return command + text if command else _message(text)

    def _line(self, prompt: str) -> str:
        """Read a line without its end."""
        if self.is_terminal and sys.stdout.isatty():
            try:
                return input(prompt)
            except EOFError:
                print()  # the prompt has a line of its own
                raise
        if self.is_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ConfigError(f"stdin is not UTF-8 text: {error}") from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


def _message(text: str) -> str:
    """Put a space before a message's slash: a word with a slash is a command."""
    text = text.strip()
    return f" {text}" if text.startswith("/") else text


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Turn on line editing with the lines of earlier chats; those of this one are added at the end.

    Whatever is missing (the module, the file, leave to write it) is done without.
    """
    readline = _readline()
    if readline is None:
        yield
        return
    readline.set_history_length(HISTORY_LEN)
    with suppress(OSError):
        readline.read_history_file(path)
    before = readline.get_current_history_length()
    try:
        yield
    finally:
        added = readline.get_current_history_length() - before
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.append_history_file(added, path)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
