"""Sort the words of a command line before click reads them, as users of llama.cpp and vLLM type them.

`-ngl 99` is one option, not `-n gl`. A name of another engine is taken out and goes to `forerun.spellings`. Anything
else that begins with a dash and is no option of the command is an error with the closest option.
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import click

from forerun.cli.help import MODEL, MODELS, PROMPT, takes_model
from forerun.core.errors import ConfigError
from forerun.spellings import engine as spellings
from forerun.spellings.flags import FLAGS

LIKE_ENOUGH = 0.75
"""A misspelt option is answered with one at least so like it (`difflib`'s ratio), or with none."""
META = "forerun.arguments"
"""Key of the `Arguments` in a context."""

_SWITCHES = ("on", "off", "auto")
"""A value that a flag may have, as in `-fa on`."""
_NUMBER = re.compile(r"-[\d.]")


@dataclass(slots=True)
class Arguments:
    """One command line: the words for click, and what click does not know."""

    words: list[str] = field(default_factory=list)
    foreign: dict[str, object] = field(default_factory=dict)
    """Names of other engines, as typed, with their values."""
    typed: dict[str, str] = field(default_factory=dict)
    """The name that the user typed, by parameter."""
    models: list[str] = field(default_factory=list, compare=False)
    """Each model that was named by an option."""
    positionals: list[int] = field(default_factory=list, compare=False)
    """Where in `words` those stand that are neither options nor their values, before any `--`."""


def of_context() -> Arguments:
    """Return the arguments of the command that runs."""
    arguments = click.get_current_context().meta.get(META)
    return arguments if isinstance(arguments, Arguments) else Arguments()


def prepare(command: click.Command, ctx: click.Context, args: Sequence[str]) -> Arguments:
    """Sort a command's words; a word more than it has arguments is its model. Raises ConfigError."""
    foreign_names = getattr(command.callback, "foreign_names", ())
    subcommands = command.list_commands(ctx) if isinstance(command, click.Group) else ()
    has_model = takes_model(command)

    def ends(word: str) -> bool:
        return bool(subcommands) and (not has_model or _is_like(word, subcommands))

    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    parsed = read(args, options, foreign_names, path=ctx.command_path, ends=ends)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    positionals = [parsed.words[i] for i in parsed.positionals]
    if has_model and len(positionals) > len(arguments):
        add_model(parsed)
    elif any(each.name == PROMPT for each in arguments):
        for word in positionals:
            if word.endswith(".gguf"):
                raise ConfigError(f"{word} is a model, not a prompt: give it as -m {word}")
    if not any(each.metavar == MODELS for each in arguments):
        check_one(parsed.models)
    extra = positionals[len(arguments) + has_model :]
    if extra and not subcommands and all(each.nargs == 1 for each in arguments):
        raise ConfigError(f"unexpected {extra[0]!r}: a text with spaces needs quotes around it")
    return parsed


def read(
    args: Sequence[str],
    options: Sequence[click.Option],
    foreign_names: Collection[str],
    *,
    path: str,
    ends: Callable[[str], bool] = lambda word: False,
) -> Arguments:
    """Sort the words of a command line. `foreign_names` are those of other engines that the command can use.

    A word without a dash for which `ends` is true begins another command. Raises ConfigError.
    """
    known = {name: one for one in options for name in (*one.opts, *one.secondary_opts)}
    words, parsed = deque(args), Arguments()
    while words:
        word = words.popleft()
        name, equals, text = word.partition("=")
        is_plain = not word.startswith("-") or word == "-" or _NUMBER.match(word) is not None
        if word == "--" or (is_plain and ends(word)):
            parsed.words.extend([word, *words])
            break
        if is_plain:
            parsed.positionals.append(len(parsed.words))
            parsed.words.append(word)
        elif (option := known.get(name) or _attached(word, known)) is not None:
            parsed.typed[str(option.name)] = name if name in known else word[:2]
            parsed.words.append(word)
            if name in known and not equals and not option.is_flag and not option.count:
                if not words:
                    raise ConfigError(f"{name} needs a value; {path} --help says which")
                parsed.words.append(text := words.popleft())
            if option.name == MODEL:
                parsed.models.append(text)
        elif _is_foreign(name, foreign_names):
            parsed.foreign[name] = text if equals else _value(name, words)
        elif foreign_names and (flag := FLAGS.get(name)) is not None:
            value = text if equals else _value(name, words)
            flag.read(name, value)
            spellings.note(name, value, flag.why)
        else:
            raise ConfigError(_unknown(word, name, known, foreign_names, path))
    return parsed


def add_model(arguments: Arguments) -> None:
    """Put `-m` before the first word that is neither an option nor its value."""
    first = arguments.positionals[0]
    arguments.models.insert(0, arguments.words[first])
    arguments.words.insert(first, "-m")
    arguments.typed.setdefault(MODEL, "-m")


def check_one(models: Sequence[str]) -> None:
    """Raise ConfigError for several models."""
    each = [*dict.fromkeys(models)]
    if len(each) > 1:
        raise ConfigError(
            f"two models, {each[0]} and {each[1]}: give one (forerun serve takes several)"
        )


def _is_like(word: str, names: Collection[str]) -> bool:
    """Tell whether a word is one of the names, or one of them misspelt."""
    return bool(difflib.get_close_matches(word, names, 1, LIKE_ENOUGH))


def _attached(word: str, known: Mapping[str, click.Option]) -> click.Option | None:
    """Find the option of `-n64`: a short one with its number right behind it."""
    option = known.get(word[:2])
    is_number = re.fullmatch(r"[\d.]+", word[2:])
    return option if is_number and option is not None and not option.is_flag else None


def _is_foreign(name: str, foreign_names: Collection[str]) -> bool:
    """Tell whether the command takes a flag of another engine, or one of ours as in vLLM: `--max_model_len`."""
    return spellings.plain(name) in foreign_names and (
        name.startswith("--") or name in spellings.SHORT
    )


def _value(name: str, words: deque[str]) -> object:
    """Take the value of another engine's flag from the words that follow. Raises ConfigError if it is missing."""
    key = spellings.plain(name)
    one = spellings.NAMES.get(key) or FLAGS.get(name)
    is_flag = one.is_flag if one is not None else key in spellings.SWITCHES
    if words and (not is_flag or words[0].lower() in _SWITCHES):
        return words.popleft()
    if not is_flag:
        raise ConfigError(f"{name} needs a value")
    return not name.startswith("--no-") or key.startswith("no_")


def _unknown(
    word: str, name: str, known: Collection[str], foreign_names: Collection[str], path: str
) -> str:
    theirs = (*spellings.SHORT, *(f"--{word.replace('_', '-')}" for word in foreign_names))
    names = [*known, *(flag for flag in theirs if _is_foreign(flag, foreign_names))]
    begins = 3 if name.startswith("--") else 2  # a short one misspelt begins alike
    names = [
        one for one in names if one[:begins] == name[:begins] and one.count("--") == begins - 2
    ]
    names = names if len(name) > 2 else []
    close = difflib.get_close_matches(name, names, 1, LIKE_ENOUGH)
    if not close and name[:2] in known and not word[2:].isalpha():
        close = [f"{name[:2]} {word[2:]}"]
    hint = f": did you mean {close[0]}?" if close else ";"
    return f"{word} is not an option of {path}{hint} {path} --help lists them"
