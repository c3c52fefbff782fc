"""What the user of `forerun chat` types: messages of one line or several, and commands that begin with a slash."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError, unknown
from forerun.system import files

PROMPT, CONTINUATION = "> ", "... "
HISTORY_LEN = 1000
"""Lines that are kept; older ones go."""
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "help": ("", "list these commands"),
    "exit": ("", "end the chat, as Ctrl-D does"),
    "clear": ("", "forget the conversation; the system message stays"),
    "undo": ("", "take back a file, or the last message and its answer"),
    "regen": ("", "answer the last message again"),
    "read": ("FILE", "put a file's text before the next message"),
    "system": ("[TEXT]", "set the system message; without TEXT show it"),
    "drafter": ("[SPEC]", "draft otherwise, such as none or suffix; without SPEC show it"),
    "save": ("FILE", "write the messages as JSON"),
    "load": ("FILE", "go on from messages that were saved"),
}
"""Argument and help by name. An argument in brackets may be left out."""
ALIASES: Final[Mapping[str, str]] = {
    "?": "help",
    "quit": "exit",
    "bye": "exit",
    "regenerate": "regen",
}
"""Names of the commands in llama.cpp and ollama."""
NOTES: Final = """\
Enter goes on with an answer that was cut. Ctrl-C stops an answer.
Pasted lines are one message. A line that ends in \\ goes on in the next;
\"\"\" begins and ends several lines. A message that begins with / needs a space
before it. What is typed is kept in {history}
and found again with the up key; forerun chat --no-history keeps nothing."""

_BLOCK = re.compile(r'(/\S+\s+)?"""(.*)', re.DOTALL)


def parse(text: str) -> tuple[str, str]:
    """Read `/name argument`. Raises ConfigError for an unknown name, or an argument too many or missing."""
    word, _, argument = text.removeprefix("/").strip().partition(" ")
    name, argument = ALIASES.get(word, word), argument.strip()
    if name not in COMMANDS:
        raise ConfigError(unknown("command", f"/{word}", [f"/{name}" for name in COMMANDS]))
    takes, _ = COMMANDS[name]
    if argument and not takes:
        raise ConfigError(f"/{word} takes no argument, got {argument!r}")
    if not argument and takes and not takes.startswith("["):
        raise ConfigError(f"/{word} needs a {takes}: /{word} {takes}")
    return name, argument


def help_text() -> str:
    """List all commands for people."""
    usages = {f"/{name} {takes}": text for name, (takes, text) in COMMANDS.items()}
    width = max(map(len, usages)) + 1
    notes = NOTES.format(history=history_file())
    return "\n".join([*(f"{usage:{width}} {text}" for usage, text in usages.items()), notes])


def history_file() -> Path:
    """Return the file of what was typed in chats, which only its owner may read."""
    from forerun.hub.names import cache_root  # 16 ms, which `--help` need not take

    return cache_root() / "chat_history"


class ChatInput:
    """Reads messages and commands from stdin. Prompts are shown only where someone types."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        if self.is_terminal:
            with suppress(ImportError):
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one

    def read(self) -> str:
        r"""Read the next message or command. A message that begins with a slash has a space before it.

        A \\ at the end of a line joins the next; a text in triple quotes has as many lines as it likes.
        Raises EOFError at the end of the input, and ConfigError for bytes that are no text.
        """
        text = self._line(PROMPT)
        if "\n" in text:
            return self._pasted(text)
        block = _BLOCK.match(text)
        command, text = ("", text) if block is None else block.groups(default="")
        with suppress(EOFError):  # the end of the input ends the text, too
            while '"""' not in text if block else text.endswith("\\"):
                text = text if block else text[:-1]
                text += "\n" + self._line(CONTINUATION)
        if block:
            text = text.partition('"""')[0].strip("\n")
        if command or (text.startswith("/") and not block):
            return command + text if block else text.rstrip()
        text = text.strip()
        return f" {text}" if text.startswith("/") else text

    def _pasted(self, text: str) -> str:
        """Take pasted lines as they are; what begins with a slash is a command only if there is such a one."""
        text = text.strip("\n").rstrip()
        word = text[1:].split(maxsplit=1)[0] if text[1:].strip() else ""
        is_message = text.startswith("/") and word not in {*COMMANDS, *ALIASES}
        return f" {text}" if is_message else text

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


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Turn on line editing with the lines of earlier chats; those of this one are added at the end.

    Whatever is missing (the module, the file, leave to write it) is done without.
    """
    try:
        import readline
    except ImportError:
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
            files.make_folder(path.parent)
            files.open_private(path, "a").close()
            readline.append_history_file(added, path)
