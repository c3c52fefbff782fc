"""The error tree. A message says what was given, what is allowed, and what to do.

ForerunError
├── ConfigError     an option or a combination of options is wrong
├── LoadError       a model, tokenizer or draft cannot be read
├── CapacityError   it does not fit: context, memory budget, cache slots
├── RequestError    one request is wrong; the others go on
└── DrafterError    a drafter breaks a rule of the protocol

The CLI prints one line and exits 2; the server answers with OpenAI's error JSON. Anything that is not a
ForerunError is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import islice

_SHOWN = 60
"""Characters of a value in a message."""


class ForerunError(Exception):
    """Base of every error a user can cause. `option` is the one that is wrong, where it is one (see `given_as`)."""

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message)
        self.option, self.typed = option, ""

    def __str__(self) -> str:
        return f"{self.args[0]} (given as {self.typed})" if self.typed else str(self.args[0])


class ConfigError(ForerunError):
    """An option, or a combination of options, is wrong."""


class LoadError(ForerunError):
    """A model, tokenizer or draft cannot be read."""


class CapacityError(ForerunError):
    """Something does not fit: the context, the memory budget, the cache."""


class DeviceMemoryError(CapacityError):
    """A device has no memory left for a pass, of which nothing is kept: the sequence that needs most of it ends."""


@contextmanager
def memory_refused(what: str) -> Iterator[None]:
    """Turn the system's refusal of memory into a CapacityError that says what it was for."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(
            f"the system refuses the memory for {what}: `forerun plan` says how much is needed; take fewer "
            "--max-num-seqs, a shorter --max-model-len or a --memory-budget"
        ) from error


class RequestError(ForerunError):
    """One request is wrong; the others go on."""


class DrafterError(ForerunError):
    """A drafter breaks a rule of the protocol."""


def hint_for(given: str, names: Sequence[str]) -> str:
    """Write a question for the name that is meant: the only one that begins so, or the most alike; empty if none is.

    >>> hint_for("smollm2", ["smollm2-135m-instruct", "tiny"])
    ": did you mean 'smollm2-135m-instruct'?"
    """
    begin = [name for name in names if given and name.startswith(given)]
    close = begin if len(begin) == 1 else difflib.get_close_matches(given, names, n=1)
    return f": did you mean '{close[0]}'?" if close else ""


def unknown(kind: str, given: object, allowed: Iterable[str], also: Iterable[str] = ()) -> str:
    """Write the message for a name that does not exist, with the closest one that does; `also` are not listed.

    Nor are more than 60 names.

    >>> unknown("drafter", "sufix", ["suffix", "none"])
    "unknown drafter 'sufix': did you mean 'suffix'? (allowed: none, suffix)"
    """
    names = sorted(allowed)
    hint = hint_for(str(given), [*names, *also])
    listed = f"allowed: {', '.join(names)}" if len(names) <= 60 else f"{len(names)} are known"
    return f"unknown {kind} {short_repr(given)}{hint} ({listed})"


def check_least(name: str, value: float | None, least: float) -> None:
    """Raise ConfigError for a number that is given but too small.

    >>> check_least("repeats", 0, 1)
    Traceback (most recent call last):
    forerun.core.errors.ConfigError: repeats must be at least 1, got 0
    """
    if value is not None and value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}", option=name)


@contextmanager
def given_as(typed: Mapping[str, str]) -> Iterator[None]:
    """Add to an error what the user called the option that is wrong, such as `(given as --draft-max)`.

    `typed` has the user's names by ours; a flag of the same name is not repeated.
    """
    try:
        yield
    except ForerunError as error:
        name = typed.get(error.typed or error.option, "")
        if name.lstrip("-").replace("-", "_") not in ("", error.option):
            error.typed = name
        raise


def reject(
    given: Mapping[str, object],
    neutral: Mapping[str, Sequence[object]],
    kind: str,
    known: Iterable[str],
) -> None:
    """Raise RequestError for a name that is not in `neutral`, or a value that is not one of its neutral ones.

    Neutral values ask for nothing; a member of an enumeration is its name. The message for a name calls it a `kind`,
    and lists the `known` names.
    """
    for name, value in given.items():
        value = value.name if isinstance(value, Enum) else value
        if name not in neutral:
            raise RequestError(unknown(kind, name, known))
        if not any(value is each or value == each for each in neutral[name]):
            allowed = " or ".join(map(repr, neutral[name]))
            raise RequestError(
                f"{name}={short_repr(value)} is not supported: leave it out, or give {allowed}",
                option=name,
            )


def reason(error: BaseException) -> str:
    """Say why something failed: in the system's words, else the error's text, else its class."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def one_line(text: str) -> str:
    """Put another program's text on one line, at most 300 characters, for a message."""
    return " ".join(text.split())[:300]


def short_repr(value: object) -> str:
    """Write a value on one line, at most 60 characters, for a message. Of a huge one only the beginning is read."""
    try:
        text = repr(_beginning(value))
    except Exception:  # such as ValueError, of a whole number of more than 4300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _beginning(value: object, levels: int = _SHOWN) -> object:
    """Keep as much of a text, list or dictionary, and of what is in it, as a message can show."""
    if type(value) in (str, bytes):
        return value[:_SHOWN]  # type: ignore[index]
    if type(value) is list and levels:
        return [_beginning(item, levels - 1) for item in value[:_SHOWN]]
    if type(value) is dict and levels:
        first = islice(value.items(), _SHOWN)
        return {_beginning(key): _beginning(item, levels - 1) for key, item in first}
    return ... if type(value) in (list, dict) else value
