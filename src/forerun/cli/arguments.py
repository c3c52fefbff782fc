"""Read arguments as llama.cpp's and vLLM's users type them, before typer sees them.

`-ngl 99` is one option, not `-n gl`. What is no option of the command but a name of another engine is taken out and
goes to `forerun.spellings`. Everything else that begins with a dash is an error with the closest option.
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.core.errors import ConfigError
from forerun.spellings import engine as spellings

MODEL = "model"
"""The option that a word without a dash is as well: `forerun plan a.gguf`."""
MODELS = "MODEL..."
"""What help calls the argument of a command that takes several models."""
PROMPT = "prompt"
"""The argument of commands whose words are a prompt: there the model needs its -m."""
LIKE_ENOUGH = 0.75
"""A misspelt option is answered with one at least so like it (`difflib`'s ratio), or with none."""
META = "forerun.arguments"
"""Key of the `Arguments` in a context."""

_SWITCHES = ("on", "off", "auto")
"""A value that a flag may have, as in `-fa on`."""
_NUMBER = re.compile(r"-[\d.]")


@dataclass(frozen=True, slots=True)
class Arguments:
    """One command line: what typer reads, and what it does not know."""

    rest: list[str] = field(default_factory=list)
    foreign: dict[str, object] = field(default_factory=dict)
    """Names of other engines, as typed, with their values."""
    typed: dict[str, str] = field(default_factory=dict)
    """The name that the user typed, by parameter."""
    models: list[str] = field(default_factory=list, compare=False)
    """Each model that was named by an option."""
    words: list[int] = field(default_factory=list, compare=False)
    """Where in `rest` the words without a dash stand, before any `--`."""


class Reading:
    """A typer command or group that reads its arguments so; before the base class."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, after names of other engines became ours."""
        command: Any = self
        reads = getattr(command.callback, "reads", ())
        options = [p for p in command.get_params(ctx) if p.param_type_name == "option"]
        below = getattr(command, "commands", {})
        has_model = takes_model(command)

        def stops(word: str) -> bool:
            return bool(below) and (not has_model or _is_like(word, below))

        found = read(args, options, reads, path=ctx.command_path, stops=stops)
        own = [p.name for p in command.params if p.param_type_name == "argument"]
        if has_model:
            found = with_model(found, len(own))
        elif PROMPT in own:
            _refuse_model(found)
        if not any(p.nargs == -1 and p.metavar == MODELS for p in command.params):
            check_one(found.models)
        ctx.meta[META] = found
        return super().parse_args(ctx, found.rest)  # type: ignore[misc]


def read(
    args: Sequence[str],
    options: Sequence[Any],
    reads: Collection[str],
    *,
    path: str,
    stops: Callable[[str], bool] = lambda word: False,
) -> Arguments:
    """Sort the words of a command line. `reads` are the names of other engines that the command can use.

    A word without a dash for which `stops` is true begins another command. Raises ConfigError.
    """
    known = {name: one for one in options for name in (*one.opts, *one.secondary_opts)}
    words, found = deque(args), Arguments()
    while words:
        word = words.popleft()
        name, equals, text = word.partition("=")
        is_plain = not word.startswith("-") or word == "-" or _NUMBER.match(word) is not None
        if word == "--" or (is_plain and stops(word)):
            found.rest.extend([word, *words])
            break
        if is_plain:
            found.words.append(len(found.rest))
            found.rest.append(word)
        elif (option := known.get(name) or _attached(word, known)) is not None:
            found.typed[option.name] = name if name in known else word[:2]
            found.rest.append(word)
            if name in known and not equals and not option.is_flag and not option.count:
                if not words:
                    raise ConfigError(f"{name} needs a value; {path} --help says which")
                found.rest.append(words.popleft())
                text = found.rest[-1]
            if option.name == MODEL:
                found.models.append(text)
        else:
            if not _is_foreign(name, reads):
                raise ConfigError(_unknown(word, name, known, reads, path))
            found.foreign[name] = text if equals else _value(name, words)
    return found


def takes_model(command: Any) -> bool:
    """Tell whether a command's model may be given without -m, and it has no argument for it."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    has_own = any(p.name == PROMPT or p.metavar in ("MODEL", MODELS) for p in arguments)
    return not has_own and any(
        p.param_type_name == "option" and p.name == MODEL for p in command.params
    )


def with_model(found: Arguments, num_own: int) -> Arguments:
    """Put `-m` before the model's word: the first, where there are more than a command's own."""
    words = [found.rest[i] for i in found.words]
    if len(words) <= num_own:
        return found
    place, models = found.words[0], [words[0], *found.models]
    rest = [*found.rest[:place], "-m", *found.rest[place:]]
    return replace(found, rest=rest, typed={MODEL: "-m", **found.typed}, models=models)


def check_one(models: Sequence[str]) -> None:
    """Raise ConfigError for several models."""
    each = [*dict.fromkeys(models)]
    if len(each) > 1:
        raise ConfigError(
            f"two models, {each[0]} and {each[1]}: give one (forerun serve takes several)"
        )


def _refuse_model(found: Arguments) -> None:
    """Raise ConfigError for a model in a prompt's place."""
    for word in (found.rest[i] for i in found.words):
        if word.endswith(".gguf"):
            raise ConfigError(f"{word} is a model, not a prompt: give it as -m {word}")


def _is_like(word: str, names: Collection[str]) -> bool:
    """Tell whether a word is one of the names, or one of them misspelt."""
    return bool(difflib.get_close_matches(word, names, 1, LIKE_ENOUGH))


def _attached(word: str, known: Mapping[str, Any]) -> Any:
    """Find the option of `-n64`: a short one with its number right behind it."""
    option = known.get(word[:2])
    is_number = re.fullmatch(r"[\d.]+", word[2:])
    return option if is_number and option is not None and not option.is_flag else None


def _is_foreign(name: str, reads: Collection[str]) -> bool:
    """Tell whether the command takes a flag of another engine, or one of ours as in vLLM: `--max_model_len`."""
    return spellings.plain(name) in reads and (name.startswith("--") or name in spellings.SHORT)


def _value(name: str, words: deque[str]) -> object:
    """Take the value of another engine's flag from the words that follow. Raises ConfigError if it is missing."""
    key = spellings.plain(name)
    one = spellings.NAMES.get(key)
    is_flag = one is not None and one.is_flag
    if words and (not is_flag or words[0].lower() in _SWITCHES):
        return words.popleft()
    if not is_flag:
        raise ConfigError(f"{name} needs a value")
    return not name.startswith("--no-") or key.startswith("no_")


def _unknown(
    word: str, name: str, known: Mapping[str, Any], reads: Collection[str], path: str
) -> str:
    theirs = (*spellings.SHORT, *(f"--{word.replace('_', '-')}" for word in reads))
    names = [*known, *(flag for flag in theirs if _is_foreign(flag, reads))]
    names = [one for one in names if one.startswith("--") == name.startswith("--")]
    close = difflib.get_close_matches(name, names, 1, LIKE_ENOUGH)
    if not close and not name.startswith("--") and known.get(name[:2]) is not None:
        close = [f"{name[:2]} {word[2:]}"]
    hint = f": did you mean {close[0]}?" if close else ";"
    return f"{word} is not an option of {path}{hint} {path} --help lists them"
