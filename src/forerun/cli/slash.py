"""The slash commands of `forerun chat`: which there are, and what was typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from forerun.core.errors import ConfigError, unknown

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "help": ("", "list these commands"),
    "exit": ("", "end the chat, as Ctrl-D does"),
    "clear": ("", "forget the conversation; the system message stays"),
    "system": ("[TEXT]", "set the system message; without TEXT show it"),
    "drafter": ("[SPEC]", "draft otherwise, such as none or suffix; without SPEC show it"),
    "save": ("FILE", "write the messages as JSON"),
    "load": ("FILE", "go on from messages that were saved"),
}
"""Argument and help by name. An argument in brackets may be left out."""
ALIASES: Final[Mapping[str, str]] = {"?": "help", "quit": "exit", "bye": "exit"}
"""Names of the commands in llama.cpp and ollama."""

NOTES: Final = """\
Enter goes on with an answer that was cut. Ctrl-C stops an answer.
A line that ends in \\ goes on in the next; \"\"\" begins and ends several lines.
A message that begins with / needs a space before it."""


class Slash(NamedTuple):
    """A command as it was typed."""

    name: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> Slash:
        """Read `/name argument`. Raises ConfigError for an unknown name, or an argument too many or missing."""
        word, _, argument = text.removeprefix("/").strip().partition(" ")
        name, argument = ALIASES.get(word, word), argument.strip()
        if name not in COMMANDS:
            raise ConfigError(unknown("command", f"/{word}", [f"/{name}" for name in COMMANDS]))
        takes, _ = COMMANDS[name]
        if argument and not takes:
            raise ConfigError(f"/{word} takes nothing, got {argument!r}")
        if not argument and takes and not takes.startswith("["):
            raise ConfigError(f"/{word} needs a {takes}: /{word} {takes}")
        return cls(name, argument)


def help_text() -> str:
    """List all commands for people."""
    usages = {f"/{name} {takes}": text for name, (takes, text) in COMMANDS.items()}
    width = max(map(len, usages)) + 1
    lines = [f"{usage:{width}} {text}" for usage, text in usages.items()]
    return "\n".join([*lines, NOTES])
