"""What stands before a form: a thought, up to the mark behind which the form begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forerun.decoding import gbnf
from forerun.decoding.calls import in_lark
from forerun.decoding.grammar import GrammarState
from forerun.text.parsing.harmony import CHANNEL, NEXT, THOUGHT
from forerun.text.tokenizer import Tokenizer

_GAP = "\ngap: /\\n{0,2}/"


def behind_mark(source: str, mark: str | None, tokenizer: Tokenizer) -> str:
    """Return a grammar of anything up to a mark, empty lines, and what `source` allows; of messages for gpt-oss."""
    if not mark:
        return source
    token = tokenizer.special_texts.get(mark)
    if mark.startswith(CHANNEL):
        lark = partial(in_lark, control=tokenizer.special_texts)
        message = f"message: {lark(THOUGHT)} /(?s:.*)/ {lark(NEXT)}"
        begun = f"start: message* {lark(mark)} @answer\n{message}"
    elif token is None:
        begun = f"start: thought gap @answer{_GAP}\nthought[lazy]: /(?s:.*){gbnf.spelled(mark)}/"
    else:  # which no text has
        begun = f"start: thought <[{token}]> gap @answer{_GAP}\nthought: /(?s:.*)/"
    lines = {"lark_grammar": begun}
    inner = json.loads(source)["grammars"][0] if source[:1] == "{" else {"lark_grammar": source}
    return json.dumps({"grammars": [lines, inner | {"name": "answer"}]})


def closing(mark: str) -> str:
    """Return what ends a thought before its time: the mark, behind what ends gpt-oss' message."""
    return NEXT + mark if mark.startswith(CHANNEL) else mark


@dataclass(frozen=True, slots=True)
class Anything:
    """All tokens, always: behind a thought whose length alone is bounded."""

    def allowed(self) -> None:
        """All."""

    def allows(self, token: int) -> bool:
        """Return what is said of one token."""
        return True

    def advance(self, token: int) -> Anything:
        """Return the same state."""
        return self

    def forced(self) -> Sequence[int]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class ReasoningBudget:
    """Anything up to a mark, which is written once `num_left` tokens have not brought it; then what `inner` allows.

    It is written where `inner` takes it: in gpt-oss' answers not within the head of a message.
    """

    inner: GrammarState
    vocab_size: int
    tokenizer: Tokenizer
    mark: bytes
    closing: tuple[int, ...]
    """What is left of the tokens that are written, which end with the mark."""
    num_left: int
    """-1: it is being written."""
    end: bytes = b""
    """Of what has been written, as long as the mark."""

    @property
    def is_free(self) -> bool:
        """True as long as the mark is not being written."""
        return self.num_left > 0 or (not self.num_left and not self.inner.allows(self.closing[0]))

    def allowed(self) -> NDArray[np.bool_] | None:
        """Mask (V,) of the tokens that may come next; None: all."""
        if self.is_free:
            return self.inner.allowed()
        mask = np.zeros(self.vocab_size, np.bool_)
        mask[self.closing[0]] = True
        return mask

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token."""
        return self.inner.allows(token) if self.is_free else token == self.closing[0]

    def advance(self, token: int) -> GrammarState | None:
        """Return the state after one more token; None if the token is not allowed."""
        inner = self.inner.advance(token) if self.allows(token) else None
        text = self.end + (self.tokenizer.token_bytes(token) or b"")
        if inner is None or self.mark in text:
            return inner
        end = text[-len(self.mark) :]
        if self.is_free:
            return replace(self, inner=inner, num_left=max(self.num_left - 1, 0), end=end)
        return replace(self, inner=inner, closing=self.closing[1:], num_left=-1, end=end)

    def forced(self) -> Sequence[int]:
        """Return the coming tokens that have no alternative."""
        return self.inner.forced() if self.is_free else self.closing
