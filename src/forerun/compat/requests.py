"""Read what OpenAI's, Anthropic's, vLLM's, llama.cpp's and other servers' clients call the fields of a request.

One rule for all dialects. A field is (a) ours, under whatever name (`RENAMED`); (b) one that constrains the answer or
stands for what is not in the request (`ONLY`, `STATE`): accepted with the values that ask for nothing, else refused by
name; (c) anything else, and left out: clients gain fields at every release. A strict server refuses the latter, but for
the hints that clients send by themselves (`HINTS`). What is left out is collected (`ignored_fields`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeGuard

from forerun.compat.ignored_fields import LONGEST_NAME, NO_EFFECT, note
from forerun.compat.request_fields import EMPTY, HINTS, NAMES, NEWER, ONLY, RENAMED, STATE
from forerun.core.errors import RequestError, short_repr
from forerun.core.params import MAX_SEED, SAMPLERS

_FILLS_CONTEXT = 2**31 - 1
"""Tokens of an answer that ends where the context does, whatever the server's bound is."""
_LEAST_TOP_P = 1e-9
"""What keeps the likeliest token alone, as 0 does elsewhere: no vocabulary is so large that another one has less."""


def read(
    given: Mapping[str, object], known: Collection[str] = ()
) -> tuple[dict[str, object], dict[str, str]]:
    """Rename a request's fields to ours, and say what each of them was called. A field that is null is not given.

    `known` are the fields of the route. Raises RequestError for a value that cannot be had here, and for two names of
    one field that differ.
    """
    fields: dict[str, object] = {}
    typed: dict[str, str] = {}
    for name, value in given.items():
        plain = snake(name, known)
        if value is None or value in EMPTY.get(RENAMED.get(plain, plain), EMPTY.get(plain, ())):
            continue
        if plain in known:
            ours, part = plain, ""
        elif plain in ONLY:
            _check(name, plain, value, ONLY)
            continue
        elif plain in HINTS:
            note(name, NO_EFFECT)
            continue
        else:
            ours, _, part = RENAMED.get(plain, name).partition("." if plain in RENAMED else "\0")
        value = _meant(plain, ours, value)
        if part:
            value = _with_part(fields.pop(ours, None), part, value, name)
        newer = NEWER.get(ours)
        if newer is not None and newer == snake(typed.get(ours, ""), known):
            continue
        if ours in fields and fields[ours] != value and plain != newer:
            raise RequestError(f"{name} and {typed[ours]} differ: give one of them")
        fields[ours], typed[ours] = value, name
    return fields, typed


def snake(name: str, known: Collection[str]) -> str:
    """Write a name as ours are, if it is one of them then: `maxTokens`, `Max-Tokens`."""
    if name in known or name in NAMES or not (name.isascii() and len(name) <= LONGEST_NAME):
        return name
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    return plain if plain in known or plain in NAMES else name


def _meant(name: str, ours: str, value: object) -> object:
    """Read a value that other servers have a meaning for."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if ours == "top_p" and is_number and value == 0:
        return _LEAST_TOP_P
    if ours == "temperature" and is_number and value < 0:  # type: ignore[operator]  # llama.cpp's greedy
        return 0.0
    if name in ("n_predict", "num_predict") and is_number and value == -2:  # to fill the context
        return _FILLS_CONTEXT
    if ours == "seed" and isinstance(value, int) and is_number and -(2**63) <= value < 2**64:
        return value if -1 <= value <= MAX_SEED else value & MAX_SEED
    if ours == "stop" and isinstance(value, list):
        return [one for one in value if one != ""]
    if ours == "samplers" and isinstance(value, str | list) and _are_texts(value):
        return _samplers(value)
    return value


_SAMPLERS = {"temp": "temperature", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
"""Other names, and llama.cpp's letters; `e` is of its penalties."""


def _are_texts(given: Iterable[object]) -> TypeGuard[Iterable[str]]:
    return all(isinstance(one, str) for one in given)


def _samplers(given: Iterable[str]) -> list[str]:
    """Read llama.cpp's order of samplers, names or letters; those that are off here are left out."""
    names = [one.lower().replace("-", "_") for one in given]
    read = [_SAMPLERS.get(name, "penalties" if name == "e" else name) for name in names]
    return [name for name in dict.fromkeys(read) if name in SAMPLERS]


def _with_part(parts: object, part: str, value: object, name: str) -> dict[str, object]:
    """Add a part that has a name of its own to a field that is an object."""
    parts = {} if parts is None else parts
    if not isinstance(parts, Mapping) or part in parts:
        raise RequestError(f"{name} is given twice: give it once")
    return {**parts, part: value}


def stateless(given: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Leave out the fields of `STATE` that ask for nothing, but for known ones. Raises RequestError for the others."""
    names = {
        name: plain for name in given if (plain := snake(name, known)) in STATE.keys() - {*known}
    }
    for name in sorted(names):
        if given[name] is not None:
            _check(name, names[name], given[name], STATE)
    return {name: value for name, value in given.items() if name not in names}


def _check(
    name: str, plain: str, value: object, table: Mapping[str, tuple[str, tuple[object, ...]]]
) -> None:
    why, neutral = table[plain]
    if not any(_is(value, choice) for choice in neutral):
        allowed = ", ".join(
            choice if isinstance(choice, str) and _RANGE.match(choice) else _word(choice)
            for choice in neutral
        )
        hint = f" (allowed: {allowed})" if allowed else ""
        message = f"{name}={short_repr(value)} is not possible here: {why}{hint}"
        raise RequestError(message, option=name)


_RANGE = re.compile(r"([<>])=(-?[\d.]+)$")


def _is(value: object, choice: object) -> bool:
    """Tell whether a value is one, or in a range, that asks for nothing."""
    bound = _RANGE.match(choice) if isinstance(choice, str) else None
    if bound is None or isinstance(value, bool) or not isinstance(value, int | float):
        return _word(value) == _word(choice)
    return value <= float(bound[2]) if bound[1] == "<" else value >= float(bound[2])


def _word(value: object) -> str:
    """Write a value as JSON, a whole number the same with and without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)
