"""Lookahead decoding: the model guesses for itself, several positions ahead, in the pass it makes anyway.

A window of W columns and N - 1 rows holds guesses of the next positions that are not good yet.
Every pass computes the model's next token after each of them (a Jacobi iteration); the tokens along a column are an
n-gram that the model finds plausible, which goes into a pool. N-grams of the pool that begin with the last token are
guesses for the tokens after it; n-grams of the prompt and the answer are too, unless `text_ngrams` leaves them out.
Window and guesses are one token tree: a node sees its ancestors and stands at its depth, which are the paper's mask and
positions. A window node that turns out right is as good as a guess.

It needs no second model, but many rows: it is faster where a pass over W (N - 1) + G (N - 1) rows costs little
more than a pass over one.

Source: lookahead decoding, Fu et al. (arXiv 2402.02057). A full match emits N tokens here, one more
than in the reference implementation. Row l, column i of the window stands l + i positions after the
last token; that token itself is column 0 of row 0.

W window, N length of an n-gram, G guesses, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from random import Random

from forerun.core import tree
from forerun.core.errors import ConfigError, check_least
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.contract import Drafter, DrafterBytes, Method, Target, as_given

Ngram = tuple[int, ...]

NGRAM_NBYTES = 464
"""Bytes of one n-gram in the pool at most, besides 36 for each of its tokens: a tuple (40), its
share of a dict that has just grown (62), and a key of its own with an almost empty dict (362)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The sizes of the paper: a pass has up to (window + guesses) * (ngram - 1) rows, the last token's among them.

    The default's 6 rows cost little more than one with native kernels. A smaller budget narrows the window.
    """

    window: int = 1
    """W: positions ahead at which n-grams are sought at once; 0 only reuses n-grams of the text."""
    ngram: int = 3
    """N: length of the n-grams; a guess is N - 1 tokens. 2 is Jacobi decoding with a pool."""
    guesses: int = 2
    """G: n-grams that are remembered for each first token and checked in a step."""
    text_ngrams: bool = True
    """The pool holds n-grams of the prompt and the answer, too; no: those of the window alone."""

    def __post_init__(self) -> None:
        for name, least in (("window", 0), ("ngram", 2), ("guesses", 1)):
            check_least(name, getattr(self, name), least)
        if not (self.window or self.text_ngrams):
            raise ConfigError("window=0 and text_ngrams=no leave nothing to guess")


def build(options: Options, target: Target) -> Lookahead:
    """Build a drafter that reads the target's logits, nothing else."""
    return Lookahead(options, target.model.config.vocab_size)


METHOD = Method(
    unshared=as_given,
    grids={
        "ngram": (3, 4, 5, 6, 7),
        "window": (0, 1, 2, 3, 5, 7, 10, 15, 20),
        "guesses": (1, 2, 3, 5, 7, 10, 15, 20),
    },
)


@dataclass(slots=True)
class Window:
    """The Jacobi window. `rows[0]` holds the tokens after the last one, every other row one token a column.

    While it fills it is wider and has fewer rows: each step adds a row and takes off a column.
    """

    rows: list[list[int]]
    height: int

    @property
    def num_columns(self) -> int:
        """Count the columns: W, and more while it fills."""
        return len(self.rows[0]) + 1

    @property
    def num_nodes(self) -> int:
        """Count the nodes of its tree."""
        return sum(map(len, self.rows))

    def fit(self, depth: int, num_nodes: int, width: int, new_tokens: Iterator[int]) -> bool:
        """Make it as wide as `width` says, of `num_nodes` nodes that reach `depth` positions ahead at most.

        Columns are taken off, or begin with new tokens. False, and nothing changes, if not one column is left.
        """
        height = len(self.rows)
        columns = min(width + self.height - height, depth - height + 2, (num_nodes + 1) // height)
        if columns < 1:
            return False
        self.rows = [self.rows[0][: columns - 1], *(row[:columns] for row in self.rows[1:])]
        for row, size in zip(self.rows, (columns - 1, *[columns] * (height - 1)), strict=True):
            row += islice(new_tokens, size - len(row))
        return True

    def tree(self) -> tuple[list[int], list[int]]:
        """Return the tokens and parents: row 0 is a chain, each column hangs below its token there."""
        tokens, parents = [*self.rows[0]], [*tree.chain(len(self.rows[0]))]
        above = range(-1, len(tokens))
        for row in self.rows[1:]:
            first = len(tokens)
            tokens += row
            parents += above
            above = range(first, len(tokens))
        return tokens, parents

    def read(self, outcome: Outcome) -> list[int]:
        """Return the model's next token after the last row, one a column."""
        stop = 1 + self.num_nodes
        return outcome.likeliest(slice(stop - self.num_columns, stop))

    def advance(self, last: int, following: list[int]) -> list[Ngram]:
        """Move on by one position; return the n-grams along the columns, once the window is full."""
        rows = [[last, *self.rows[0]], *self.rows[1:], following]
        if len(self.rows) < self.height:
            self.rows = [self.rows[0][1:], *(row[1:] for row in rows[1:])]
            return []
        self.rows = [rows[1][1:], *rows[2:]]
        return list(zip(*rows, strict=True))


@dataclass(slots=True)
class Pool:
    """N-grams by their first token, at most `size` for each; the least recently seen goes first."""

    size: int
    ngrams: dict[int, dict[Ngram, None]] = field(default_factory=dict)

    def add(self, ngrams: Iterable[Ngram]) -> None:
        """Remember n-grams, the last as the newest."""
        for first, *rest in ngrams:
            known = self.ngrams.setdefault(first, {})
            known.pop(tuple(rest), None)
            known[tuple(rest)] = None
            if len(known) > self.size:
                del known[next(iter(known))]

    def after(self, token: int) -> list[Ngram]:
        """Return the continuations seen after a token, newest first."""
        return [*reversed(self.ngrams.get(token, {}))]


@dataclass(slots=True)
class State:
    """One sequence: its pool, its window, how much of its text the pool holds, and what was drafted last."""

    pool: Pool
    window: Window | None
    new_tokens: Iterator[int] = field(default_factory=lambda: repeat(0))
    """Tokens of the prompt for the columns of the window."""
    num_read: int = 0
    drafted: Draft | None = None
    """The last draft, if it began with the whole window."""


class Lookahead(Drafter):
    """Seeks n-grams with the target's own passes, and guesses those it found."""

    def __init__(self, options: Options, vocab_size: int) -> None:
        self.options = options
        self.vocab_size = vocab_size
        self.max_nodes = (options.window + options.guesses) * (options.ngram - 1)
        self.states: dict[int, State] = {}

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Start a window of the prompt's tokens, drawn by the seed, and a pool of the text's n-grams."""
        draws, prompt = Random(seq.seed), seq.tokens[: seq.num_prompt]
        new_tokens = map(draws.choice, repeat(prompt))
        height, width = self.options.ngram - 1, self.options.window
        row = [*islice(new_tokens, max(0, width + height - 2))]
        window = Window([row], height) if width else None
        self.states[seq.id] = State(Pool(self.options.guesses), window, new_tokens)

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Move the windows on by the target's next tokens, and pool the n-grams."""
        for seq, draft, outcome in zip(seqs, drafts, outcomes, strict=True):
            state = self.states[seq.id]
            drafted, state.drafted = state.drafted, None
            if state.window is None or drafted is None:
                continue
            if draft.trim(len(drafted)) == drafted:  # nothing was cut off
                last = seq.tokens[-1 - len(outcome.emitted)]
                state.pool.add(state.window.advance(last, state.window.read(outcome)))

    def end(self, seq: Seq) -> None:
        """Drop the sequence's pool of n-grams and its window."""
        self.states.pop(seq.id, None)

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count pools as full as they can get: each token adds an n-gram of the text and one a column."""
        most = min(max_len * (self.options.window + 1), self.vocab_size * self.options.guesses)
        nbytes = most * (NGRAM_NBYTES + 36 * self.options.ngram) + 8192
        return DrafterBytes(tables=num_seqs * nbytes)

    def propose_one(self, seq: Seq, budget: int) -> Draft:
        """Guess the window, as wide as one n-gram after the last token leaves it, and those n-grams."""
        state, n = self.states[seq.id], self.options.ngram
        if self.options.text_ngrams:
            for stop in range(max(state.num_read + 1, n), len(seq.tokens) + 1):
                state.pool.add([tuple(seq.tokens[stop - n : stop])])
            state.num_read = len(seq.tokens)
        known = state.pool.after(seq.tokens[-1])
        tokens, parents = tree.from_paths(known)
        depth = sys.maxsize
        if seq.params.max_tokens is not None:
            depth = seq.params.max_tokens - len(seq.generated) - 1
        room = budget - (n - 1) * bool(known)
        has_window = state.window is not None and state.window.fit(
            depth, room, self.options.window, state.new_tokens
        )
        if state.window is not None and has_window:
            tokens, parents = tree.graft(*state.window.tree(), tokens, parents)
        draft = Draft(tokens, parents).trim(budget)
        state.drafted = draft if has_window else None
        return draft
