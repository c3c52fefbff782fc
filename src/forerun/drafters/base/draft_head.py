"""A draft's head, cut to the tokens worth scoring: those of a list, and those that the text has already.

The head is a third of a small draft's step, and most of its rows belong to rare tokens. A token that is not scored is
not guessed, and costs a rejected guess where the target takes it; the answer stays the target's. A rare token of a text
comes again in that text, so the text's own tokens are worth more than thousands on the list.

Sources: a list, VocabTrim (arXiv 2506.22694) and FR-Spec (arXiv 2502.14856); a request's own tokens, NanoSpec
(arXiv 2605.26444), which also takes what the verified rows found likely: a draft would then depend on more than the
text before it.

M rows, D width, n tokens on the list, V vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from forerun.core import registry
from forerun.core.arrays import Floats, Ids
from forerun.core.errors import ConfigError
from forerun.drafters.base import trimmed
from forerun.drafters.base.contract import Target
from forerun.drafters.base.vocabulary import Vocabulary, fingerprint
from forerun.model.model import HeadPart, Model

LIST_SIZE = 32768
"""Tokens on the list where no better one was made; a vocabulary below twice as many is not cut."""
COUNTED_SIZE = 16384
"""The same of a list of counted tokens."""
MAX_TEXT_TOKENS = 1024
"""As many of a text's tokens are scored besides the list, the last ones that are not on it."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits (n,) of the tokens (n,) that a model may guess below a row; `tokens` None: of the whole vocabulary."""

    logits: Floats
    tokens: Ids | None = None
    vocab_size: int = 0

    def dense(self) -> Floats:
        """Spread the logits to (V,): minus infinity, so no probability, for every other token."""
        if self.tokens is None:
            return self.logits
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[self.tokens] = self.logits
        return row


class TextTokens:
    """The tokens of one text that are not on the list, and their part of the head."""

    def __init__(self, model: Model, is_listed: NDArray[np.bool_]) -> None:
        self.ids: Ids = np.empty(0, np.int64)
        """Ascending, each once."""
        self.part: HeadPart | None = None
        """None without such tokens."""
        self._model = model
        self._is_listed = is_listed
        self._num_read = 0
        self._last: deque[int] = deque(maxlen=MAX_TEXT_TOKENS)

    def read(self, tokens: Sequence[int]) -> None:
        """Take up the tokens that the text has gained since the last call."""
        new = np.fromiter(islice(tokens, self._num_read, None), np.int64)
        self._num_read = len(tokens)
        new = new[new < len(self._is_listed)]
        if len(new := new[~self._is_listed[new]]):
            self._last.extend(new.tolist())
            ids = np.array(sorted({*self._last}), np.int64)
            if not np.array_equal(ids, self.ids):
                self.ids, self.part = ids, self._model.head_part(ids)


class DraftHead:
    """Scores the tokens on a list and, for each text, those that it has already."""

    def __init__(self, model: Model, vocab_size: int, listed: Ids) -> None:
        self.vocab_size = vocab_size
        self._model = model
        self._listed = listed
        self._part = model.head_part(listed)
        self._is_listed = np.zeros(vocab_size, np.bool_)
        self._is_listed[listed] = True

    def new_text(self) -> TextTokens:
        """Return the scored tokens of a new text, none yet."""
        return TextTokens(self._model, self._is_listed)

    def scores(self, hidden: Floats, texts: Sequence[TextTokens]) -> list[Scores]:
        """Score rows (M, D), each of another text."""
        rows = []
        for i, (text, logits) in enumerate(zip(texts, self._part.logits(hidden), strict=True)):
            tokens = self._listed
            if text.part is not None:
                logits = np.concatenate([logits, text.part.logits(hidden[i : i + 1])[0]])
                tokens = np.concatenate([tokens, text.ids])
            rows.append(Scores(logits, tokens, self.vocab_size))
        return rows

    def nbytes(self, num_texts: int) -> int:
        """Count the bytes at most besides the model's weights."""
        row_nbytes = math.ceil(self._part.nbytes / len(self._listed))
        tables = self._is_listed.nbytes + self._listed.nbytes
        return self._part.nbytes + tables + num_texts * MAX_TEXT_TOKENS * row_nbytes


def head_nbytes(head: DraftHead | None, num_texts: int) -> int:
    """Count the bytes of a cut head at most; None has none."""
    return 0 if head is None else head.nbytes(num_texts)


def must_have(vocabulary: Vocabulary | None, vocab_size: int) -> list[int]:
    """Return the tokens that belong on every list, ascending: special ones, such as the end of a text, single bytes."""
    if vocabulary is None:
        return []
    return [
        token
        for token in range(min(vocab_size, vocabulary.vocab_size))
        if len(vocabulary.token_bytes(token) or b"") == 1 or vocabulary.is_special(token)
    ]


def list_of(draft_vocab: str, target: Target, vocab_size: int) -> Ids | None:
    """Choose the list that `draft_vocab` means, None for all tokens. Raises ConfigError, and LoadError for a folder."""
    size = {"auto": LIST_SIZE, "counted": COUNTED_SIZE}.get(draft_vocab)
    if draft_vocab == "full" or (size and vocab_size < 2 * size):
        return None
    if draft_vocab == "counted":
        return _counted(target, vocab_size)
    if not size and not draft_vocab.isdecimal():
        _, tokens = trimmed.load(draft_vocab, target)
        return tokens[tokens < vocab_size]
    size = size or int(draft_vocab)
    if size > vocab_size:
        raise ConfigError(
            f"draft_vocab={size} is more than the {vocab_size} tokens of the vocabulary"
        )
    return first_tokens(target.vocabulary, vocab_size, size)


def _counted(target: Target, vocab_size: int) -> Ids:
    """Choose the tokens that the replies which ship with `recycling` have most often."""
    known, ranked = target.vocabulary, [*range(vocab_size)]
    has_replies = "recycling" in registry.shipped("drafters")
    if has_replies and known is not None and target.encode is not None:
        replies = registry.load("drafters", "recycling").shared_replies
        counted = replies.frequent_tokens(target.encode, fingerprint(known))
        ranked = [*counted[counted < vocab_size].tolist(), *ranked]
    return chosen(ranked, must_have(known, vocab_size), COUNTED_SIZE)


def cut_list(draft_vocab: str, target: Target, tokens: Ids | None) -> Ids | None:
    """Choose the list for a trained head of `tokens`, None for one of all; auto leaves one that is cut already.

    Raises ConfigError.
    """
    if draft_vocab == "auto" and tokens is not None:
        return None
    return list_of(draft_vocab, target, target.model.config.vocab_size)


def first_tokens(vocabulary: Vocabulary | None, vocab_size: int, size: int) -> Ids:
    """Choose a list (size,) where nothing was counted: the first ids of a vocabulary are its frequent tokens."""
    return chosen(range(vocab_size), must_have(vocabulary, vocab_size), size)


def chosen(ranked: Sequence[int], needed: Sequence[int], size: int) -> Ids:
    """Choose a list (size,), ascending: the needed tokens, then the first ranked ones."""
    listed = dict.fromkeys(needed)
    others = (token for token in ranked if token not in listed)
    return np.array(sorted([*listed, *islice(others, max(0, size - len(listed)))]), np.int64)
