"""Perplexity: how well a model, as it is stored and computed here, predicts a text.

The text is cut into windows that overlap. A token is predicted once, in the first window that holds
it, from all tokens of the window before it: at least `window - stride` of them, except near the
beginning of the text. The first token of a text has nothing before it and is not predicted; nor is,
where windows do not overlap, the first one of each.

Prompts are read exactly as the engine reads them; drafting has no part in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from operator import add

import numpy as np

from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ConfigError
from forerun.lab.store import Store
from forerun.model.cache.base import KVCache
from forerun.model.model import Model

HEAD_ROWS = 64
"""Rows whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class TextWindow:
    """Tokens `start` to `stop`, of which those from `first` on are predicted."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over predicted tokens: negative log-probabilities in nats, seconds, and how near a reference is.

    `kl` is the divergence from the reference in nats, `same` counts tokens where both find the same one likeliest.
    """

    tokens: int = 0
    nll: float = 0.0
    seconds: float = 0.0
    kl: float = 0.0
    same: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*map(add, astuple(self), astuple(other)))

    @property
    def ppl(self) -> float:
        """The perplexity; as all means, not a number before the first token."""
        return math.exp(self.nll / self.tokens) if self.tokens else math.nan

    @property
    def mean_kl(self) -> float:
        """The mean divergence, in nats a token."""
        return self.kl / self.tokens if self.tokens else math.nan

    @property
    def agreement(self) -> float:
        """The share of tokens after which the likeliest next one is the reference's."""
        return self.same / self.tokens if self.tokens else math.nan


def windows(num_tokens: int, window: int, stride: int) -> list[TextWindow]:
    """Return the windows of a text. Raises ConfigError for sizes that make no sense."""
    if window < 2:
        raise ConfigError(f"the window must hold at least 2 tokens, got {window}")
    if not 1 <= stride <= window:
        raise ConfigError(f"the stride must be from 1 to the window's {window}, got {stride}")
    if num_tokens < 2:
        raise ConfigError(f"perplexity needs at least 2 tokens, got {num_tokens}")
    cut: list[TextWindow] = []
    stop = 0
    for start in range(0, num_tokens - 1, stride):
        first, stop = max(stop, start + 1), min(start + window, num_tokens)
        cut.append(TextWindow(start, stop, first))
        if stop == num_tokens:
            break
    return cut


def new_cache(model: Model, window: int, kv: Precision = "auto") -> KVCache:
    """Allocate a cache for windows of so many tokens. Raises ConfigError if the model's context is shorter."""
    if window > model.config.max_position:
        raise ConfigError(
            f"a window of {window} tokens is longer than the model's context "
            f"of {model.config.max_position}: give a smaller --window"
        )
    return model.new_cache(1, window, kv)


def measure(
    model: Model,
    tokens: Sequence[int],
    plan: Sequence[TextWindow],
    store: Store,
    kv: Precision = "auto",
) -> Iterator[Score]:
    """Score every window in order, with keys and values as `kv`; what the store has is not computed again.

    Raises ConfigError if a window is longer than the model's context.
    """
    cache = new_cache(model, max(window.stop - window.start for window in plan), kv)
    for window in plan:
        key = f"{window.start}:{window.stop}"
        if key not in store.results:
            store.add(key, asdict(_score(model, tokens, window, cache)))
        yield Score(**store.results[key])  # type: ignore[arg-type]  # as written above


def _score(model: Model, tokens: Sequence[int], window: TextWindow, cache: KVCache) -> Score:
    begin_s = time.perf_counter()
    read = tokens[window.start : window.stop - 1]
    hidden = model.forward(Batch((Segment(0, 0, tuple(read), certain=len(read)),)), cache).last
    rows = hidden[window.first - 1 - window.start :]
    nll = 0.0
    for start in range(0, len(rows), HEAD_ROWS):
        logits = model.head(rows[start : start + HEAD_ROWS])  # (HEAD_ROWS, V)
        logits = logits - logits.max(1, keepdims=True)
        begin = window.first + start
        goal = logits[np.arange(len(logits)), tokens[begin : begin + len(logits)]]
        sums = np.exp(logits).sum(1, dtype=np.float64)
        nll += float((np.log(sums) - goal).sum())
    return Score(len(rows), nll, time.perf_counter() - begin_s)
