"""Grammars of structured outputs, by the library llguidance: schemas and expressions become states (`grammar.py`).

llguidance follows an Earley parser over bytes and walks the vocabulary's trie for a mask. Where bytes are forced, it
allows only the tokens that the tokenizer itself would write, so what is forced has one spelling in tokens as well.
A state is copied in a few microseconds: branches of a draft need no way back.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.core import background
from forerun.core.errors import RequestError, one_line
from forerun.core.structured import LAYOUT, StructuredOutputsParams, closed
from forerun.decoding import gbnf, schemas
from forerun.decoding.grammar import Compiling, GrammarState
from forerun.decoding.thought import Anything, BeforeMark, behind_mark, closing
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NUM_CACHED = 16
"""Grammars that are kept compiled."""
SOON_S = 0.02
"""A grammar that is compiled within it is waited for: a pass takes as long."""
MAX_LEXER_STATES = 100_000
"""States of the automata of one grammar, about 0.5 kB each; a text with a `maxLength` takes 20 of them a token."""
MAX_MASK_ITEMS = 1_000_000
"""Of Earley's parser in one mask: without a lexer every character of every token is one or more."""

_MARK = b"\x02"
"""A byte that no word is made with."""
STACK_NBYTES = 256 * 1024 * 1024
"""Of the thread that compiles; only what is used of it takes memory."""
_stack_size = threading.Lock()
"""The size holds for all threads that start meanwhile."""


class Grammars:
    """Compiles the structured outputs of requests for one vocabulary, from any thread; the latest ones are kept."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is that of the model's head, which may be padded."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._words: LLTokenizer | None = None
        self._known: OrderedDict[StructuredOutputsParams, Future[Guided]] = OrderedDict()
        self._lock, self._words_lock = threading.Lock(), threading.Lock()

    def read_ahead(self) -> None:
        """Read the vocabulary in a thread, before the first request needs it; that request raises what is wrong."""

        def read() -> None:
            with suppress(RequestError):
                self._vocabulary()

        background.start("forerun-vocabulary", read, yields=False)

    def start(self, wanted: StructuredOutputsParams) -> GrammarState:
        """Return the state before the first token. Raises RequestError for what cannot be compiled."""
        compiled = None if wanted.bounds_thought else self._compiled(wanted)[0].result()
        return self._own(wanted, compiled)

    def begin(self, wanted: StructuredOutputsParams) -> GrammarState:
        """Return the state before the first token, at once: what takes long goes on in a thread.

        That is the first grammar of all, for which the vocabulary is read. Raises RequestError for what cannot be
        compiled, as does such a state.
        """
        if wanted.bounds_thought:
            return self.start(wanted)
        compiled, is_new = self._compiled(wanted)
        state = Compiling(compiled, partial(self._own, wanted))
        return state.state if state.is_ready(SOON_S if is_new else 0) else state

    def _compiled(self, wanted: StructuredOutputsParams) -> tuple[Future[Guided], bool]:
        """Return a grammar that may still be in the making, and whether that begins now."""
        with self._lock:
            is_new = wanted not in self._known
            if is_new:
                self._known[wanted] = _with_deep_stack(partial(self._compile, wanted))
            self._known.move_to_end(wanted)
            while len(self._known) > NUM_CACHED:
                self._known.popitem(last=False)
            return self._known[wanted], is_new

    def _own(self, wanted: StructuredOutputsParams, compiled: Guided | None) -> GrammarState:
        """Return a request's own state before the first token; without a grammar anything may come."""
        state: GrammarState = Anything()
        if compiled is not None:
            with self._lock:
                state = compiled.copy()
        mark = wanted.after
        if not mark or wanted.max_before is None:
            return state
        tokens = self._tokenizer.encode(closing(mark), bos=False)
        given = (mark.encode(), (*tokens,), wanted.max_before)
        return BeforeMark(state, self._vocab_size, self._tokenizer, *given)

    def _vocabulary(self) -> LLTokenizer:
        with self._words_lock:
            self._words = self._words or self._read_vocabulary()
            return self._words

    def _read_vocabulary(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ModuleNotFoundError as error:
            raise RequestError(
                "structured output needs llguidance: pip install '.[structured]' in a clone brings it"
            ) from error
        if not self._tokenizer.eos_ids:
            raise RequestError("structured output needs a model with an end token")
        words: Any = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size))
        # Masks of texts are as fast with those of 10 and 30 characters alone, and made in two thirds of the time.
        slices = LLTokenizer.general_slices()[1:3]
        return LLTokenizer(words, eos_token=sorted(self._tokenizer.eos_ids), slices=slices)

    def _compile(self, wanted: StructuredOutputsParams) -> Guided:
        try:
            return self._compile_for(wanted, self._vocabulary())
        except BaseException:
            with self._lock:
                self._known.pop(wanted, None)
            raise

    def _compile_for(self, wanted: StructuredOutputsParams, words: LLTokenizer) -> Guided:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, step_max_items=MAX_MASK_ITEMS, verbose_errors=False
        )
        try:
            source = behind_mark(_source(wanted, self._tokenizer), wanted.after, self._tokenizer)
        except Exception as error:  # its own kinds, by what is wrong with the grammar
            raise _refused(wanted, str(error)) from error
        matcher = LLMatcher(words, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(wanted, matcher.get_error())
        state = Guided(matcher, self._vocab_size, self._tokenizer.eos_ids)
        try:
            tokens = np.flatnonzero(state.allowed())
        except RequestError as error:
            raise _refused(wanted, "it is too complex") from error
        if not len(tokens):
            raise _refused(wanted, "nothing matches it")
        after = state.advance(int(tokens[-1]))
        if matcher.is_error() or (after is not None and after.matcher.is_error()):
            raise _refused(wanted, "it is too complex")
        return state


def _with_deep_stack(work: Callable[[], Guided]) -> Future[Guided]:
    """Run in a thread of its own: the library compiles recursively, and a short text can hold thousands of rules."""
    pool = ThreadPoolExecutor(1)
    with _stack_size:
        before = threading.stack_size(STACK_NBYTES)
        try:
            return pool.submit(work)  # starts the thread
        finally:
            threading.stack_size(before)
            pool.shutdown(wait=False)


@dataclass(frozen=True, slots=True, eq=False)
class Guided:
    """What is allowed after some tokens. Nothing here changes the matcher: it is copied first."""

    matcher: LLMatcher
    vocab_size: int
    eos_ids: frozenset[int]

    def copy(self) -> Guided:
        """Return the same state for another thread: a matcher is one thread's at a time."""
        return Guided(self.matcher.deep_copy(), self.vocab_size, self.eos_ids)

    def allowed(self) -> NDArray[np.bool_]:
        """Mask (V,) of the tokens that may come next. Raises RequestError if the library has reached its limits."""
        bits = b"" if self.matcher.is_error() else self.matcher.compute_bitmask()
        if self.matcher.is_error():
            raise RequestError(
                "structured_outputs became too complex in mid-answer: make bounds of repetitions smaller, "
                f"or leave a pattern out ({one_line(self.matcher.get_error())})"
            )
        found = np.unpackbits(
            np.frombuffer(bits, np.uint8), count=self.vocab_size, bitorder="little"
        )
        mask: NDArray[np.bool_] = found.view(np.bool_)
        return mask

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token."""
        if token in self.eos_ids:
            return self.matcher.is_accepting()
        return self.matcher.validate_tokens([token]) == 1

    def advance(self, token: int) -> Guided | None:
        """Return the state after one more token; None if the token is not allowed or ends the output."""
        if token in self.eos_ids:
            return None
        matcher = self.matcher.deep_copy()
        if matcher.try_consume_tokens([token]) or matcher.is_error():
            return Guided(matcher, self.vocab_size, self.eos_ids)
        return None

    def forced(self) -> Sequence[int]:
        """Return the coming tokens that have no alternative."""
        if not self.matcher.compute_ff_bytes():  # the cheaper question
            return ()
        return self.matcher.compute_ff_tokens()


class _Vocabulary:
    """A tokenizer as llguidance asks for it: the bytes of every id, and a text's own tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = min(tokenizer.eos_ids), tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) or b"" for i in range(vocab_size)]
        self.special_token_ids = [i for i in range(vocab_size) if tokenizer.is_special(i)]
        self._mark = (
            self.tokens.index(_MARK) if tokenizer.adds_space and _MARK in self.tokens else None
        )

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("a text is needed")
        if self._mark is None:
            return self._tokenizer.encode(text, special=False, bos=False)
        # SentencePiece would put a space before it, which is no part of an answer.
        ids = self._tokenizer.encode(_MARK.decode() + text, special=False, bos=False)
        return ids[ids.index(self._mark) + 1 :]


def _source(wanted: StructuredOutputsParams, tokenizer: Tokenizer) -> str:
    """Return the grammar as llguidance reads it."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(gbnf.spelled, wanted.choice)))
    if wanted.grammar is not None and not gbnf.is_gbnf(wanted.grammar):
        return LLMatcher.grammar_from_lark(wanted.grammar)
    if wanted.grammar is not None:
        expression, lark = gbnf.translated(wanted.grammar, tokenizer.one_id)
        if expression is not None:
            return LLMatcher.grammar_from_regex(expression)
        return LLMatcher.grammar_from_lark(lark)
    space = wanted.whitespace_pattern
    layout: Any = LAYOUT if space is None else {"whitespace_pattern": space}
    given = {"type": "object"} if wanted.json is None else json.loads(str(wanted.json))
    schema = schemas.without_unknown_formats(closed(given))
    if schemas.LargeNumbers.are_in(schema):
        return LLMatcher.grammar_from_lark(schemas.LargeNumbers(schema, layout).lark())
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=layout)


_ITS_OPTION = re.compile(r"Enable 'coerce_one_of' option to approximate oneOf with anyOf")


def _refused(wanted: StructuredOutputsParams, why: str) -> RequestError:
    why = _ITS_OPTION.sub("Write anyOf where no value fits two of them", why)
    return RequestError(f"{wanted.kind} cannot be used: {one_line(why)}")
