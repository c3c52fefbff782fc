"""What drafters are trained on: the target's replies, and texts cut into windows.

Replies that go round in circles are left out, and those that came twice. Some prompts are held out, by their names, so
that a longer store holds out the same ones.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from forerun.core.errors import ConfigError
from forerun.lab.store import Store
from forerun.lab.train.answers import answers_in

HELD_OUT = 25
"""One prompt of so many is held out."""
MAX_HELD_OUT = 300
NEEDED_PROMPTS = 100
"""Of so many, at least one is held out and one is not, with a probability above 98 %."""
LOOP_GRAM, MAX_REPEATS = 4, 8
"""A reply in which a run of `LOOP_GRAM` tokens comes more often is a loop."""
MIN_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Reply:
    """Tokens of which those from `first` on are learned to be guessed."""

    key: str
    domain: str
    tokens: tuple[int, ...]
    first: int
    temperature: float | None = None
    """It was sampled with; None if the store does not say."""

    @property
    def num_learned(self) -> int:
        """Tokens from `first` on."""
        return len(self.tokens) - self.first

    def cut(self, length: int) -> Reply:
        """Return the prompt and `length` tokens of the answer, at most."""
        return replace(self, tokens=self.tokens[: self.first + length])


def of_store(store: Store, left_out: Collection[str] = ()) -> list[Reply]:
    """Read the replies of a store that are worth learning from, but for those to prompts that are left out, by id.

    Raises ConfigError if there are none.
    """
    replies, seen = [], set[tuple[int, ...]]()
    for (key, row), (prompt, answer) in zip(store.results.items(), answers_in(store), strict=True):
        tokens = (*prompt, *answer)
        if len(answer) < MIN_LENGTH or tokens in seen or is_loop(answer):
            continue
        if prompt_of(key) in left_out:
            continue
        seen.add(tokens)
        domain = str(row.get("category", "all"))
        temperature = row.get("temperature")
        known = float(temperature) if isinstance(temperature, int | float) else None
        replies.append(Reply(key, domain, tokens, len(prompt), known))
    if not replies:
        raise ConfigError(
            f"{store.path} holds no replies to learn from: make some with forerun train data"
        )
    return replies


def of_text(name: str, tokens: Sequence[int], length: int) -> Iterator[Reply]:
    """Cut a text into windows of `length` tokens; a rest that is too short is left out."""
    for start in range(0, len(tokens), length):
        part = tuple(tokens[start : start + length])
        if len(part) > MIN_LENGTH:
            yield Reply(f"{name}/{start}", "text", part, 1)


def is_loop(tokens: Sequence[int]) -> bool:
    """Tell whether a run of tokens repeats more often than natural text does."""
    grams = Counter(zip(*(tokens[i:] for i in range(LOOP_GRAM)), strict=False))
    return max(grams.values(), default=0) > MAX_REPEATS


def split(replies: Collection[Reply]) -> tuple[list[Reply], list[Reply]]:
    """Split replies into those to train on and, of other prompts, to test on. Raises ConfigError if either is empty."""
    held_keys = {reply.key for reply in replies if is_held_out(prompt_of(reply.key))}
    train = [reply for reply in replies if reply.key not in held_keys]
    held_out = [reply for reply in replies if reply.key in held_keys][:MAX_HELD_OUT]
    if not train or not held_out:
        raise ConfigError(
            f"{len(replies)} replies are too few: one prompt of {HELD_OUT} is held out to measure on, so give replies "
            f"to {NEEDED_PROMPTS} prompts or more (100k tokens are a beginning, 1M what a good drafter takes): "
            "forerun train data makes them"
        )
    return train, held_out


def is_held_out(prompt: str) -> bool:
    """Tell whether the replies to a prompt, by its id, are measured on."""
    return not zlib.crc32(prompt.encode()) % HELD_OUT


def prompt_of(key: str) -> str:
    """Return the id of the prompt that a reply answers."""
    return key.rpartition("/")[0]
