"""Whether a compiled form can write a text, over the tokens of a vocabulary."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from forerun.core.errors import one_line
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars, Guided, ReasoningBudget
from forerun.text.tokenizer import Tokenizer

MAX_SPELLINGS = 800
"""Of one value: orders of its keys, of its numbers' digits and of its characters."""


class Reader:
    """The tokens of a vocabulary by their bytes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._eos_ids = [*tokenizer.eos_ids]
        self._ids: dict[bytes, int] = {}
        for i in range(vocab_size):
            if not tokenizer.is_special(i) and (spelled := tokenizer.token_bytes(i)):
                self._ids.setdefault(spelled, i)
        self._longest = max(map(len, self._ids))

    def writes(self, start: Guided, value: Any) -> str | None:
        """A spelling of a JSON value that the form allows from its first token to its end, or None."""
        texts = itertools.islice(spellings(value), MAX_SPELLINGS)
        return next((text for text in texts if self.accepts(start, text)), None)

    def accepts(self, start: Guided, text: str) -> bool:
        """Whether some split of the text into tokens is allowed, token by token, and the end after it."""
        wanted = text.encode()
        states, dead = [(0, start)], {0}
        while states:
            place, state = states.pop()
            allowed = state.allowed()
            if place == len(wanted):
                if allowed[self._eos_ids].any():
                    return True
                continue
            for size in range(1, self._longest + 1):  # the longest is tried first
                token = self._ids.get(wanted[place : place + size])
                end = place + size
                if token is None or end in dead or end > len(wanted) or not allowed[token]:
                    continue
                if (after := state.advance(token)) is not None:
                    dead.add(end)
                    states.append((end, after))
        return False


def spellings(value: Any) -> Iterator[str]:
    """Texts of one JSON value in our layout.

    >>> [*spellings({"a": 1.0, "b": []})]
    ['{"a": 1.0, "b": []}', '{"b": [], "a": 1.0}', '{"a": 1, "b": []}', '{"b": [], "a": 1}']
    """
    for arranged in _arranged(value):
        yield from dict.fromkeys(
            json.dumps(arranged, ensure_ascii=ascii_only) for ascii_only in (False, True)
        )


def _arranged(value: Any) -> Iterator[Any]:
    """The value with its keys in every order, and its numbers with and without a point."""
    if isinstance(value, dict):
        own = [_arranged(part) for part in value.values()]
        for parts in itertools.product(*own):
            for order in itertools.permutations(zip(value, parts, strict=True)):
                yield dict(order)
    elif isinstance(value, list):
        yield from map(list, itertools.product(*map(_arranged, value)))
    elif isinstance(value, float) and value.is_integer():
        yield value
        yield int(value)
    else:
        yield value


def as_given(grammars: Grammars, form: StructuredOutputsParams) -> Guided | ReasoningBudget:
    """The form of a schema whose objects are not closed, by grammars that compile nothing else."""
    with mock.patch("forerun.decoding.guidance.closed", lambda schema: schema):
        return grammars.start(form)


def because(error: str) -> str:
    """The reason of a refusal, without the names that are the schema's own."""
    said = one_line(error).removeprefix("json cannot be used: ")
    if said.startswith("Resource "):
        return "refers to another document, which is not fetched"
    return re.sub(r" while processing .*|'json-schema:.*", "", said).replace("|", "\\|")


def version(checkout: Path) -> str:
    """The commit that a checkout stands at."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "a copy without its history"
