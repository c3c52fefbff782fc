"""From one row of logits to a token: the only place where logits become probabilities.

A `LogitsPipeline` is built once a sequence. Which drafted tokens are accepted is decided in `verify`; when a sequence
ends, in `stops`.

Rows are processed one at a time, by one thread: a row's result depends neither on its neighbours nor on the number
of threads.

The order is: processors of the caller's own, banned tokens (the grammar's mask, those that are not allowed, bad words,
end tokens before `min_tokens`), logit bias, repetition, frequency and presence penalties, temperature, top-k, top-p,
min-p; the last four in another one where `SamplingParams.samplers` says so. Each filter sees what the one before it
left, renormalised. Wherever tokens are ranked, the lower id comes first among equals.

V vocabulary.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.arrays import Floats
from forerun.core.errors import RequestError
from forerun.core.params import LogitsProcessor, SamplingParams
from forerun.core.random import Noise, no_token
from forerun.core.types import TokenLogprob
from forerun.decoding.grammar import Compiling, GrammarState

Row = Floats

MIN_TEMPERATURE = 1e-5  # below it, fp32 can hardly tell the distribution from the greedy choice
NUM_CANDIDATES = 1024  # the nucleus is looked for among that many tokens before all are sorted


class LogitsPipeline:
    """One request's processing of logits, in the order above.

    Methods take `logits` (V,), fp32, as the model gave them; the tokens `generated` after the prompt;
    and the grammar's state after those, if the request has a grammar. None of them is changed.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        noise: Noise | None = None,
        eos_ids: frozenset[int] = frozenset(),
        grammar: GrammarState | None = None,
        bad_words: Sequence[tuple[int, ...]] = (),
        runs_processors: bool = False,
    ) -> None:
        """`eos_ids` are the model's end tokens, which a request may ignore; `grammar` is its first state.

        The request's own processors are run where it `runs_processors`: a draft guesses without them, so that each is
        called once for each token of the output. So do `bad_words`, by their tokens.
        """
        self.params, self.noise = params, noise or Noise(0)
        self.factor = 1 / max(params.temperature, MIN_TEMPERATURE)
        """Of logits, by the temperature."""
        self._filter_factor = _filter_factor(params, self.factor)
        own = params.logits_processors if runs_processors else ()
        self._processors = [_processor(one, prompt) for one in own]
        self._bad_words = bad_words
        self._allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        self.changes_logits = bool(
            params.has_penalties
            or params.logit_bias
            or params.min_tokens
            or self._processors
            or bad_words
            or self._allowed is not None
        )
        needs_only_row = grammar is None and not self.changes_logits
        self.needs_only_argmax = needs_only_row and params.is_greedy
        self.needs_only_draw = needs_only_row and not (params.is_greedy or params.has_filters)
        """Whether a token is chosen by logits, temperature and noise alone."""
        self._num_prompt = len(prompt)
        self._biased, self._bias = _columns(params.logit_bias)
        self._prompt_ids = _ids(sorted({*prompt}) if params.has_penalties else ())
        self._end_ids = _ids(end_ids(params, eos_ids))
        self._grammar, self._num_read = grammar, 0
        self.has_grammar = grammar is not None
        """Whether a grammar says which tokens may come."""
        self.mask_s = 0.0
        """Seconds that the grammar's masks took since this was set to 0."""

    @property
    def compiling(self) -> Compiling | None:
        """The grammar, if the first token has yet to be chosen and the grammar was not compiled when it was given."""
        return self._grammar if isinstance(self._grammar, Compiling) else None

    def grammar_after(self, generated: Sequence[int]) -> GrammarState | None:
        """Return the grammar's state after the committed tokens, each read once; None without a grammar.

        Raises ValueError if the grammar does not allow them, or nothing after them.
        """
        if self._grammar is None:
            return None
        for token in generated[self._num_read :]:
            state = self._grammar.advance(token)
            if state is None:
                raise ValueError(f"the grammar allows nothing after token {token}")
            self._grammar, self._num_read = state, self._num_read + 1
        return self._grammar

    def adjusted(
        self, logits: Row, generated: Sequence[int], grammar: GrammarState | None = None
    ) -> Row:
        """Return the logits (V,) after bans, bias and penalties: what the greedy choice and the softmax see."""
        return self._adjust(logits, generated, grammar)

    def probs(
        self, logits: Row, generated: Sequence[int], grammar: GrammarState | None = None
    ) -> Row:
        """Return the probabilities (V,) of the next token; one-hot at temperature 0."""
        row = self._adjust(logits, generated, grammar)
        law = np.zeros_like(row)
        if self.params.is_greedy:
            law[row.argmax()] = 1
        else:
            probs, ids = _softmax(row, self.factor), self._kept(row)
            law[ids] = probs[ids] / np.float32(probs[ids].sum(dtype=np.float64))
        return law

    def choose(
        self, logits: Row, generated: Sequence[int], grammar: GrammarState | None = None
    ) -> int:
        """Return the token that plain decoding takes next: the largest logit, or score, the lowest id among equals.

        A score is the logit over the temperature and the noise of the token at its position; tokens that a filter
        leaves out have none. Raises RequestError where there is no such token.
        """
        position = self._num_prompt + len(generated)
        if grammar is not None and not (self.changes_logits or self.params.has_filters):
            token = self._best(logits, position)
            if grammar.allows(token):  # so it is the best of those that are allowed
                return token
        return self._best(self._adjust(logits, generated, grammar), position)

    def _best(self, row: Row, position: int) -> int:
        params = self.params
        if params.is_greedy:
            token = int(row.argmax())
            if not row[token] > -np.inf:
                raise no_token()
            return token
        if not params.has_filters:
            return self.noise.draw(position, row, self.factor)
        ids = self._kept(row)
        scores = row[ids] * np.float32(self.factor) + self.noise.of(position, ids)
        return int(ids[scores.argmax()])

    def _kept(self, row: Row) -> NDArray[np.intp]:
        if self._filter_factor is None:
            return kept_in_order(row, self.params, self.factor)
        return kept(_softmax(row, self._filter_factor), self.params)

    def _adjust(self, row: Row, generated: Sequence[int], grammar: GrammarState | None) -> Row:
        params = self.params
        if grammar is None and not self.changes_logits:
            return row
        for process in self._processors:
            row = process(generated, row)
        start_s = time.perf_counter()
        mask = None if grammar is None else grammar.allowed()
        self.mask_s += time.perf_counter() - start_s
        row = row.copy() if mask is None else np.where(mask, row, np.float32(-np.inf))
        if self._allowed is not None:
            allowed = _inside(self._allowed, row)
            values = row[allowed]
            row[:] = -np.inf
            row[allowed] = values
        for *before, last in self._bad_words:
            start = len(generated) - len(before)
            if last < len(row) and start >= 0 and [*generated[start:]] == before:
                row[last] = -np.inf
        if len(generated) < params.min_tokens:
            row[_inside(self._end_ids, row)] = -np.inf
        if params.logit_bias:
            is_inside = self._biased < len(row)  # a draft's vocabulary may be narrower
            row[self._biased[is_inside]] += self._bias[is_inside]
        if params.has_penalties:
            self._penalise(row, _inside(_ids(generated), row))
        return row

    def _penalise(self, row: Row, generated: NDArray[np.int64]) -> None:
        params = self.params
        seen = np.concatenate([_inside(self._prompt_ids, row), generated])
        values = row[seen]
        factor = np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0, values / factor, values * factor)
        emitted, counts = np.unique(generated, return_counts=True)
        penalties = params.frequency_penalty * counts + params.presence_penalty
        row[emitted] -= penalties.astype(np.float32)


def _processor(call: LogitsProcessor, prompt: Sequence[int]) -> Callable[[Sequence[int], Row], Row]:
    """Make a processor of the caller's own a function of the ids so far and logits (V,), which it may change in place.

    One of three arguments gets the prompt's ids first.
    """
    try:
        kinds = [one.kind for one in inspect.signature(call).parameters.values()]
    except (TypeError, ValueError):  # such as one written in C
        kinds = []
    wants_prompt = sum(kind in _POSITIONAL for kind in kinds) > 2
    first = ([*prompt],) if wants_prompt else ()

    def process(generated: Sequence[int], row: Row) -> Row:
        copy = row.copy()
        given = call(*first, [*generated], copy)
        changed = np.asarray(copy if given is None else given, dtype=np.float32)
        if changed.shape != row.shape:
            raise RequestError(
                f"a logits processor must return {len(row)} logits, got shape {changed.shape}",
                option="logits_processors",
            )
        return changed

    return process


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def end_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Return the token ids that end a sequence."""
    ends = frozenset(params.stop_token_ids)
    return ends if params.ignore_eos else ends | eos_ids


def logprobs(logits: Row, token: int, num_top: int) -> TokenLogprob:
    """Return the log-probabilities of `token` and of the likeliest tokens by the raw logits (V,).

    `num_top` of the likeliest are reported, all if there are fewer, or for -1.
    """
    row = logits
    shifted = row - row.max()
    log_probs = shifted - np.log(np.exp(shifted).sum(dtype=np.float64))
    rank = 1 + int((row > row[token]).sum() + (row[:token] == row[token]).sum())
    count = len(row) if num_top < 0 else min(num_top, len(row))
    top = _likeliest(row, count) if count else ()
    return TokenLogprob(
        token, float(log_probs[token]), rank, tuple((int(i), float(log_probs[i])) for i in top)
    )


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(tokens, dtype=np.int64)


def _columns(bias: Mapping[int, float]) -> tuple[NDArray[np.int64], Row]:
    """Return the token ids and what is added to their logits, as arrays: made once, used in every row."""
    return _ids(bias), np.fromiter(bias.values(), dtype=np.float32)


def _inside(ids: NDArray[np.int64], row: Row) -> NDArray[np.int64]:
    """Keep the ids that the row has: a draft's vocabulary may be narrower."""
    return ids[ids < len(row)]


def _softmax(row: Row, factor: float) -> Row:
    row = row * np.float32(factor)
    probs: Row = np.exp(row - row.max())
    probs /= np.float32(probs.sum(dtype=np.float64))
    return probs


def kept(probs: Row, params: SamplingParams) -> NDArray[np.intp]:
    """Return the ids that top-k, top-p and min-p leave, ascending: each keeps the first so many of one ranking.

    Raises RequestError for probabilities (V,) that are not numbers.
    """
    if np.isnan(probs[0]):
        raise no_token()
    num_all = len(probs)
    limit = min(params.top_k, num_all) if params.top_k > 0 else num_all
    if params.top_p == 1 and params.min_p == 0:
        values = _largest(probs, limit)
    else:
        size = limit if params.top_k > 0 else min(limit, NUM_CANDIDATES)
        values = _largest(probs, size)
        length = _passing(values, params)
        if length == size < limit:
            values = _largest(probs, limit)
            length = _passing(values, params)
        values = values[:length]
    ids = np.flatnonzero(probs >= values[-1])
    surplus = len(ids) - len(values)
    if surplus:  # the last of the equals at the border
        ties = np.flatnonzero(probs[ids] == values[-1])
        ids = np.delete(ids, ties[-surplus:])
    return ids[probs[ids] > 0]


def _filter_factor(params: SamplingParams, factor: float) -> float | None:
    """Return the factor of the logits that all filters see, None where not all see the same, one after the other."""
    active = {"top_k": params.top_k > 0, "top_p": params.top_p < 1, "min_p": params.min_p > 0}
    order = [name for name in params.samplers if active.get(name, name == "temperature")]
    filters = [name for name in active if active[name]]
    if set(filters) <= {"top_k"}:
        return factor  # it ranks alike at any temperature, where a colder one may round chances to nothing
    if order in ([*filters, "temperature"], filters):
        return 1.0
    return factor if order == ["temperature", *filters] else None


def kept_in_order(row: Row, params: SamplingParams, factor: float) -> NDArray[np.intp]:
    """Return the ids that the samplers leave of logits (V,), one after the other; ascending."""
    if np.isnan(row).any():
        raise no_token()
    ids, scale = np.argsort(-row, kind="stable"), 1.0
    for name in params.samplers:
        probs = _softmax(row[ids], scale)
        if name == "temperature":
            scale = factor
        elif name == "top_k" and params.top_k > 0:
            ids = ids[: params.top_k]
        elif name == "top_p" and params.top_p < 1:
            collected = probs.cumsum(dtype=np.float64)
            ids = ids[: 1 + int(collected.searchsorted(params.top_p * collected[-1]))]
        elif name == "min_p" and params.min_p > 0:
            ids = ids[probs >= np.float32(params.min_p) * probs[0]]
    return np.sort(ids[row[ids] > -np.inf])


def _passing(values: Row, params: SamplingParams) -> int:
    """Return how many of the ranked probabilities pass top-p and min-p; top-k has cut them already."""
    length = len(values)
    if params.top_p < 1:
        collected = values.cumsum(dtype=np.float64)
        total = collected[-1] if params.top_k > 0 else 1.0
        length = min(length, 1 + int(collected.searchsorted(params.top_p * total)))
    if params.min_p > 0:
        length = min(length, int((values >= np.float32(params.min_p) * values[0]).sum()))
    return length


def _largest(row: Row, n: int) -> Row:
    """Return the `n` largest values, in descending order."""
    first = len(row) - n
    largest: Row = np.sort(np.partition(row, first)[first:])[::-1]
    return largest


def _likeliest(row: Row, n: int) -> NDArray[np.intp]:
    """Return the ids of the `n` largest values, largest first, lower id first among equals."""
    ids = np.flatnonzero(row >= _largest(row, n)[-1])
    return ids[np.argsort(-row[ids], kind="stable")][:n]
